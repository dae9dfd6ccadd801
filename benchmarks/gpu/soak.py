"""Ten thousand requests of mixed length, temperature, aborts and shared prefixes on a tree server.

Checks: nothing crashes, every KV slot comes back, and greedy requests give the plain server's ids. The
result has matrix.py's form, so gaps.py says how near a tie each difference was.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines import Cell, Server, add_arguments, ids_of, setup_of, start, stop, wait
from prompts import library


@dataclass(frozen=True)
class Load:
    """One request of the soak."""

    ids: list[int]
    temperature: float
    tokens: int
    leaves: bool  # the client goes away while it runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--tree", default="16x4")
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--concurrency", type=int, default=48)
    parser.add_argument(
        "--flag",
        action="append",
        default=[],
        help="a further flag for the tree's server; few --tokens and --schedule-conservativeness=0.1 retract",
    )
    args = parser.parse_args()
    setup = setup_of(args)
    pair = next(iter(setup.pairs))
    budget, cap = (int(part) for part in args.tree.split("x"))
    extra = ("--enable-metrics", *args.flag)
    tree = Cell(pair=pair, kind="tree", budget=budget, cap=cap, extra=extra)
    servers = start([tree, Cell(pair=pair, kind="plain")], setup, args.gpus, base_port=26000)
    try:
        wait(servers, args.up_s)
        loads = plan(library(setup.pairs[pair], 4000), args.requests)
        result = soak(servers[0], servers[1], loads, args.concurrency)
    finally:
        stop(servers)
    report(result, loads, pair, args)


def plan(pieces: list[list[int]], count: int, seed: int = 11) -> list[Load]:
    """Half greedy; one in twenty leaves; two in three begin with one of eight shared prefixes."""
    draw = random.Random(seed)
    prefixes = [[token for piece in draw.sample(pieces, 6) for token in piece] for _ in range(8)]
    loads = []
    for _ in range(count):
        ids = list(draw.choice(pieces))
        if draw.random() < 2 / 3:
            ids = draw.choice(prefixes) + ids
        temperature = 0.0 if draw.random() < 0.5 else draw.choice([0.6, 0.8, 1.0])
        tokens = draw.choice([1, 2, 4, 8, 16, 32, 64, 96, 128, 200])
        loads.append(Load(ids=ids, temperature=temperature, tokens=tokens, leaves=draw.random() < 0.05))
    return loads


def soak(tree: Server, plain: Server, loads: list[Load], concurrency: int) -> dict[str, Any]:
    before, began = _used(tree), time.monotonic()
    with ThreadPoolExecutor(concurrency) as pool:
        ours = list(pool.map(lambda load: _send(tree, load), loads))
    seconds = time.monotonic() - began
    greedy = [index for index, load in enumerate(loads) if load.temperature == 0 and not load.leaves]
    with ThreadPoolExecutor(concurrency) as pool:
        theirs = list(pool.map(lambda index: _send(plain, loads[index]), greedy))
    with ThreadPoolExecutor(
        7
    ) as pool:  # the plain server against itself in other batches: how much is rounding
        again = list(pool.map(lambda index: _send(plain, loads[index]), greedy))
    time.sleep(3)
    tree.flush()
    after = _used(tree)
    metrics = [
        line for line in tree.get("/metrics").decode().splitlines() if line.startswith("sglang:ddtree")
    ]
    return {
        "seconds": seconds,
        "kv_used": [before, after],
        "alive": tree.process.poll() is None,
        "metrics": metrics,
        "ours": ours,
        "greedy": greedy,
        "theirs": theirs,
        "again": again,
        "retractions": tree.log.read_text(errors="replace").count("Retract requests"),
    }


def _send(server: Server, load: Load) -> Any:
    params = {"temperature": load.temperature, "max_new_tokens": load.tokens, "ignore_eos": True}
    if load.leaves:
        return _leave(server, load, params)
    try:
        reply = server.generate(load.ids, **params)
    except OSError as error:
        return repr(error)
    return ids_of(reply)


def _leave(server: Server, load: Load, params: dict[str, Any]) -> str:
    """Sends the request as a stream and goes away after its first bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = json.dumps({"input_ids": load.ids, "sampling_params": params, "stream": True})
    connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
    connection.getresponse().read(8)
    connection.close()
    return "left"


def _used(server: Server) -> Any:
    """KV slots neither free nor held by the radix cache, as the scheduler counts them."""
    return _find(json.loads(server.get("/v1/loads")), "num_used_tokens")


def _find(data: Any, key: str) -> Any:
    if isinstance(data, dict):
        return (
            data[key]
            if key in data
            else next((got for one in data.values() if (got := _find(one, key)) is not None), None)
        )
    if isinstance(data, list):
        return next((got for one in data if (got := _find(one, key)) is not None), None)
    return None


def report(result: dict[str, Any], loads: list[Load], pair: str, args: argparse.Namespace) -> None:
    ours, greedy, theirs = result["ours"], result["greedy"], result["theirs"]
    bad = [one for one in ours if isinstance(one, str) and one != "left"]
    short = sum(
        isinstance(one, list) and len(one) != load.tokens for one, load in zip(ours, loads, strict=True)
    )
    equal = sum(ours[index] == wanted for index, wanted in zip(greedy, theirs, strict=True))
    left = sum(one == "left" for one in ours)
    print(f"requests {len(ours)} at concurrency {args.concurrency} in {result['seconds']:.1f} s")
    print(f"left by their client {left}, failed {len(bad)} {bad[:3]}, of another length than asked {short}")
    print(f"KV slots used before, and after with the cache flushed: {result['kv_used']}")
    print(f"server alive: {result['alive']}")
    print(f"retractions {result['retractions']}; greedy ids equal to plain's {equal}/{len(greedy)}")
    control = sum(one == other for one, other in zip(result["again"], theirs, strict=True))
    print(f"control, the plain server against itself in other batches: {control}/{len(greedy)}")
    print("\n".join(result["metrics"]))
    cells = {
        f"{pair}-plain-graph": {"batches": {"1": {"ids": theirs}}},
        f"{pair}-plainagain-graph": {"batches": {"1": {"ids": result["again"]}}},
        f"{pair}-soak-graph": {"batches": {"1": {"ids": [ours[index] for index in greedy]}}},
    }
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "prompts.json").write_text(json.dumps({pair: [loads[index].ids for index in greedy]}))
    for name, cell in cells.items():
        (out / f"{name}.json").write_text(json.dumps(cell))


if __name__ == "__main__":
    main()
