"""Ids, acceptance and step time of many servers against the plain one: the lossless matrix, in waves.

For each cell and batch size every prompt is decoded greedily; ids are compared with the plain server's one-at-a-time
ids. Acceptance is the mean over prompts of completion tokens / verify steps, prefill's token included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from engines import Cell, Server, Setup, add_arguments, batch, ids_of, setup_of, start, stop, wait
from prompts import library, shipped


def main() -> None:
    args = _arguments()
    setup = setup_of(args)
    prompts = {name: _prompts(args, home) for name, home in setup.pairs.items()}
    cells = _cells(args)
    done: dict[str, Any] = {}
    for at in range(0, len(cells), args.wave):
        done.update(_wave(cells[at : at + args.wave], setup, prompts, args))
        Path(args.out).write_text(json.dumps(done))
    report(done)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--cells", required=True, help="e.g. plain,chain,7x1,16x4 (budget x cap)")
    parser.add_argument("--graphs", default="on", help="on, off or on,off")
    parser.add_argument("--batches", default="1,16")
    parser.add_argument(
        "--prompts", type=int, default=0, help="pieces of library source; 0: the pair's own prompts"
    )
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--wave", type=int, default=12, help="servers at once")
    parser.add_argument("--alone", action="store_true", help="one server at work at a time: for step times")
    return parser.parse_args()


def _prompts(args: argparse.Namespace, home: Path) -> list[list[int]]:
    return library(home, args.prompts) if args.prompts else shipped(home)


def _cells(args: argparse.Namespace) -> list[Cell]:
    found = []
    for pair in [one.split("=", 1)[0] for one in args.pair]:
        for graphs in args.graphs.split(","):
            for word in args.cells.split(","):
                if word in ("plain", "chain"):
                    found.append(Cell(pair=pair, kind=word, graphs=graphs == "on"))
                else:
                    budget, cap = word.split("x")
                    found.append(
                        Cell(pair=pair, kind="tree", budget=int(budget), cap=int(cap), graphs=graphs == "on")
                    )
    return found


def _wave(
    cells: list[Cell], setup: Setup, prompts: dict[str, Any], args: argparse.Namespace
) -> dict[str, Any]:
    began = time.monotonic()
    servers = start(cells, setup, args.gpus)
    try:
        up = wait(servers, args.up_s)
        print(f"# {len(up)} of {len(servers)} servers up in {time.monotonic() - began:.0f} s", flush=True)
        with ThreadPoolExecutor(1 if args.alone else max(1, len(up))) as pool:
            found = pool.map(
                lambda server: (server.cell.name, measure(server, prompts[server.cell.pair], args)), up
            )
            return dict(found)
    finally:
        stop(servers)


def measure(server: Server, prompts: list[list[int]], args: argparse.Namespace) -> dict[str, Any]:
    """All batch sizes on one server; a failure is kept as its text."""
    result: dict[str, Any] = {"up_s": round(server.up_s or 0, 1), "batches": {}}
    params = {"temperature": 0, "max_new_tokens": args.new_tokens, "ignore_eos": True}
    try:
        batch(server, prompts[:16], 16, **params)
        for size in (int(word) for word in args.batches.split(",")):
            server.flush()
            began = time.monotonic()
            replies = batch(server, prompts, size, **params)
            result["batches"][size] = _figures(replies, time.monotonic() - began)
        result["info"] = _info(server)
    except OSError as error:
        result["error"] = f"{error!r}: {server.tail(40)}"
    return result


def _figures(replies: list[Any], seconds: float) -> dict[str, Any]:
    metas = [reply["meta_info"] for reply in replies]
    steps = [meta.get("spec_verify_ct") for meta in metas]
    tokens = sum(meta["completion_tokens"] for meta in metas)
    figures = {
        "ids": [ids_of(reply) for reply in replies],
        "tok_s": round(tokens / seconds, 1),
        "seconds": seconds,
    }
    if all(steps):
        figures["accept"] = statistics.mean(
            m["completion_tokens"] / s for m, s in zip(metas, steps, strict=True)
        )
        figures["steps"] = steps
        figures["ms_step"] = 1e3 * seconds / sum(steps)
        figures["ddtree"] = metas[0].get("ddtree")
    return figures


def _info(server: Server) -> dict[str, Any]:
    info = json.loads(server.get("/server_info"))
    names = ("speculative_ddtree_budget", "speculative_ddtree_topk_cap", "speculative_num_draft_tokens")
    ready = [line for line in server.log.read_text(errors="replace").splitlines() if "DDTree ready." in line]
    return {**{name: info.get(name) for name in names}, "ready": ready[:1]}


def first_difference(ours: list[int], theirs: list[int]) -> int | None:
    return next((at for at, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other), None)


def report(done: dict[str, Any]) -> None:
    """One line a cell and batch: prompts equal to the plain server's, acceptance, tokens a second, ms a step."""
    print("| cell | batch | ids equal | first differences | accept (mean of 128/steps) | tok/s | ms/step |")
    print("|---|---|---|---|---|---|---|")
    for name, result in done.items():
        if "error" in result:
            print(f"| {name} | error | {result['error'][:2000]} |")
        pair = name.split("-")[0]
        plain = done.get(f"{pair}-plain-graph", {}).get("batches", {})
        chain = done.get(f"{pair}-chain-{name.split('-')[2]}", {}).get("batches", {})
        for size, figures in result["batches"].items():
            print(_line(name, size, figures, plain.get(1) or plain.get("1"), chain.get(size)), flush=True)


def _line(name: str, size: int, figures: dict[str, Any], plain: Any, chain: Any) -> str:
    places: list[Any] = []
    if plain:
        places = [first_difference(a, b) for a, b in zip(figures["ids"], plain["ids"], strict=True)]
    odd = [f"{index}@{place}" for index, place in enumerate(places) if place is not None]
    equal = f"{len(places) - len(odd)}/{len(places)}"
    accept = f"{figures['accept']:.3f}" if "accept" in figures else "–"
    step = f"{figures['ms_step']:.3f}" if "ms_step" in figures else "–"
    if chain and "ms_step" in figures and "ms_step" in chain:
        step += f" ({figures['ms_step'] / chain['ms_step']:.3f}× chain)"
        if figures["steps"] == chain["steps"]:
            step += " steps = chain's"
    return f"| {name} | {size} | {equal} | {' '.join(odd[:12])} | {accept} | {figures['tok_s']} | {step} |"


if __name__ == "__main__":
    main()
