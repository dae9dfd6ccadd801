"""Ids, acceptance and step time of many servers against the plain one: the lossless matrix, in waves.

For each cell and batch size every prompt is decoded greedily; ids are compared with the plain server's one-
at-a-time ids. Acceptance is the mean over prompts of completion tokens / verify steps, prefill's token
included; it is given for the pair's own prompts and for pieces of library source, as far as each was asked.
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
from prompts import TRAINED, library, shipped


def main() -> None:
    args = _arguments()
    setup = setup_of(args)
    prompts = {name: _prompts(args, home) for name, home in setup.pairs.items()}
    cells = _cells(args)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "prompts.json").write_text(json.dumps(prompts))
    began = time.monotonic()
    for at in range(0, len(cells), args.wave):
        if time.monotonic() - began > args.deadline:
            print(f"# out of time: {len(cells) - at} cells not run: {[cell.name for cell in cells[at:]]}")
            break
        _wave(cells[at : at + args.wave], setup, prompts, args)
    report(load(out)["cells"], {name: len(shipped(home)) for name, home in setup.pairs.items()})


def load(out: Path) -> dict[str, Any]:
    """Prompts by pair and results by cell, as kept in a run's directory: one file a cell."""
    files = [path for path in sorted(out.glob("*.json")) if path.name != "prompts.json"]
    cells = {path.stem: json.loads(path.read_text()) for path in files}
    return {"prompts": json.loads((out / "prompts.json").read_text()), "cells": cells}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument(
        "--cells",
        required=True,
        help="e.g. plain,chain,7x1,16x4 (budget x cap); chain@stock runs from unpatched sources, "
        "plain@patched from patched ones",
    )
    parser.add_argument("--graphs", default="on", help="on, off or on,off")
    parser.add_argument("--batches", default="1,16")
    parser.add_argument(
        "--prompts", type=int, default=0, help="pieces of library source, beside the pair's own prompts"
    )
    parser.add_argument("--modules", default=TRAINED, help="library modules that --prompts takes pieces of")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--wave", type=int, default=12, help="servers at once")
    parser.add_argument(
        "--deadline", type=float, default=1e9, help="seconds after which no further wave starts"
    )
    parser.add_argument("--base-port", type=int, default=10000)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--flag", action="append", default=[], help="a further server flag, for every server")
    parser.add_argument(
        "--repeats", type=int, default=1, help="passes over all batches; the fastest is reported"
    )
    parser.add_argument("--alone", action="store_true", help="one server at work at a time: for step times")
    return parser.parse_args()


def _prompts(args: argparse.Namespace, home: Path) -> list[list[int]]:
    return shipped(home) + library(home, args.prompts, args.modules)


def _cells(args: argparse.Namespace) -> list[Cell]:
    found = []
    for graphs in args.graphs.split(","):
        for pair in [one.split("=", 1)[0] for one in args.pair]:
            found += [_cell(pair, word, graphs == "on", args) for word in args.cells.split(",")]
    return found


def _cell(pair: str, word: str, graphs: bool, args: argparse.Namespace) -> Cell:
    common = {"pair": pair, "graphs": graphs, "tp": args.tp, "extra": tuple(args.flag)}
    kind, _, site = word.partition("@")
    if kind in ("plain", "chain"):
        return Cell(kind=kind, site=site, **common)
    budget, cap = word.split("x")
    return Cell(kind="tree", budget=int(budget), cap=int(cap), **common)


def _wave(cells: list[Cell], setup: Setup, prompts: dict[str, Any], args: argparse.Namespace) -> None:
    began = time.monotonic()
    servers = start(cells, setup, args.gpus, args.base_port)
    try:
        up = wait(servers, args.up_s)
        print(f"# {len(up)} of {len(servers)} servers up in {time.monotonic() - began:.0f} s", flush=True)
        for _ in range(args.repeats):
            with ThreadPoolExecutor(1 if args.alone else max(1, len(up))) as pool:
                list(pool.map(lambda server: measure(server, prompts[server.cell.pair], args), up))
    finally:
        stop(servers)


def measure(server: Server, prompts: list[list[int]], args: argparse.Namespace) -> None:
    """All batch sizes on one server, kept after each; a failure is kept as its text."""
    path = Path(args.out) / f"{server.cell.name}.json"
    result = json.loads(path.read_text()) if path.exists() else {"up_s": server.up_s, "batches": {}}
    params = {"temperature": 0, "max_new_tokens": args.new_tokens, "ignore_eos": True}
    try:
        batch(server, prompts[:16], 16, **params)
        for size in args.batches.split(","):
            server.flush()
            began = time.monotonic()
            replies = batch(server, prompts, int(size), **params)
            now = _figures(replies, time.monotonic() - began)
            result["batches"][size] = _faster(result["batches"].get(size), now)
            path.write_text(json.dumps(result))
        result["info"] = _info(server)
    except OSError as error:
        result["error"] = f"{error!r}: {server.tail(40)}"
    path.write_text(json.dumps(result))


def _faster(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """The quicker of two passes, with every pass's seconds in it."""
    if before is None:
        return now
    best = min(before, now, key=lambda figures: figures["seconds"])
    return {**best, "passes": [*before["passes"], *now["passes"]]}


def _figures(replies: list[Any], seconds: float) -> dict[str, Any]:
    metas = [reply["meta_info"] for reply in replies]
    steps = [meta.get("spec_verify_ct") for meta in metas]
    tokens = sum(meta["completion_tokens"] for meta in metas)
    figures = {
        "ids": [ids_of(reply) for reply in replies],
        "tok_s": round(tokens / seconds, 1),
        "seconds": seconds,
    }
    figures["passes"] = [round(seconds, 3)]
    if all(steps):
        figures["accepts"] = [m["completion_tokens"] / s for m, s in zip(metas, steps, strict=True)]
        figures["steps"] = steps
        figures["ms_step"] = 1e3 * seconds / sum(steps)
        figures["ddtree"] = metas[0].get("ddtree")
    return figures


def _info(server: Server) -> dict[str, Any]:
    info = json.loads(server.get("/server_info"))
    names = ("speculative_ddtree_budget", "speculative_ddtree_topk_cap", "speculative_num_draft_tokens")
    ready = [line for line in server.log.read_text(errors="replace").splitlines() if "DDTree ready." in line]
    return {**{name: info.get(name) for name in names}, "ready": ready[:1]}


def reference(cells: dict[str, Any], pair: str, rest: str = "") -> list[list[int]] | None:
    """The plain server's ids, those of its smallest batch size; None when it was not run."""
    batches = cells.get(f"{pair}-plain-graph{rest}", {}).get("batches", {})
    return batches[min(batches, key=int)]["ids"] if batches else None


def first_difference(ours: list[int], theirs: list[int]) -> int | None:
    return next((at for at, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other), None)


def report(done: dict[str, Any], own: dict[str, int]) -> None:
    """One line a cell and batch: prompts equal to the plain server's, acceptance, tokens/s, ms a step.

    `own` says how many of each pair's prompts, the first ones, are the pair's own.
    """
    print("accept: mean over prompts of new tokens / verify steps, on the pair's own prompts and on pieces")
    print("| cell | batch | ids equal | first differences | accept own | pieces | tok/s | ms/step |")
    print("|---|---|---|---|---|---|---|---|")
    for name, result in done.items():
        if "error" in result:
            print(f"| {name} | error | {result['error'][:2000]} |")
        pair = name.split("-")[0]
        rest = "".join(f"-{word}" for word in name.split("-", 3)[3:])
        plain = reference(done, pair, rest)
        chain = done.get(f"{pair}-chain-{name.split('-')[2]}{rest}", {}).get("batches", {})
        for size, figures in result["batches"].items():
            line = _line(figures, plain, chain.get(size), own[pair])
            print(f"| {name} | {size} | {line}", flush=True)


def _line(figures: dict[str, Any], plain: Any, chain: Any, own: int) -> str:
    places: list[Any] = []
    if plain:
        places = [first_difference(a, b) for a, b in zip(figures["ids"], plain, strict=True)]
    odd = [f"{index}@{place}" for index, place in enumerate(places) if place is not None]
    equal = f"{len(places) - len(odd)}/{len(places)}"
    parts = [figures.get("accepts", [])[:own], figures.get("accepts", [])[own:]]
    accept = " | ".join(f"{statistics.mean(part):.3f}" if part else "–" for part in parts)
    step = f"{figures['ms_step']:.3f}" if "ms_step" in figures else "–"
    if chain and "ms_step" in figures and "ms_step" in chain:
        step += f" ({figures['ms_step'] / chain['ms_step']:.3f}× chain)"
        if figures["steps"] == chain["steps"]:
            step += " steps = chain's"
    return f"{equal} | {' '.join(odd[:12])} | {accept} | {figures['tok_s']} | {step} |"


if __name__ == "__main__":
    main()
