"""Draws of a tree server against the plain server's: the same distribution of the next tokens?

For each prompt and temperature both servers give --draws samples of five tokens: the first comes from
prefill, the next one to four from verified trees. The sequences of each length are compared by a two-sample
chi-square test over those that both servers together gave at least ten times, the rest pooled; p-values are
Bonferroni-corrected over all. `--flattest K` chooses the K prompts, among pieces of library source, whose
first hundred samples differ most.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from engines import Cell, Server, add_arguments, ids_of, setup_of, start, stop, wait
from prompts import TRAINED, library, shipped
from scipy.stats import chi2_contingency

LENGTH = 5
AT_ONCE = 100  # samples a request
LEAST = 10  # occurrences, both servers together, of a category of its own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--tree", default="16x4")
    parser.add_argument("--draws", type=int, default=20000)
    parser.add_argument("--temperatures", default="0.8,1.0")
    parser.add_argument("--chosen", default="0,5", help="indices into the pair's prompts")
    parser.add_argument(
        "--flattest", type=int, default=0, help="choose this many among 64 pieces of library source instead"
    )
    parser.add_argument("--modules", default=TRAINED, help="library modules that --flattest looks through")
    args = parser.parse_args()
    setup = setup_of(args)
    pair = next(iter(setup.pairs))
    budget, cap = (int(part) for part in args.tree.split("x"))
    servers = start(
        [Cell(pair=pair, kind="plain"), _tree(pair, budget, cap)], setup, args.gpus, base_port=25000
    )
    try:
        wait(servers, args.up_s)
        prompts = _prompts(servers[0], setup.pairs[pair], args)
        with ThreadPoolExecutor(2) as pool:
            plain, tree = pool.map(lambda server: draw_all(server, prompts, args), servers)
    finally:
        stop(servers)
    rows = compare(plain, tree)
    Path(args.out).write_text(json.dumps(rows, indent=1))
    raise SystemExit(report(rows, args))


def _tree(pair: str, budget: int, cap: int) -> Cell:
    return Cell(pair=pair, kind="tree", budget=budget, cap=cap)


def _prompts(plain: Server, home: Path, args: argparse.Namespace) -> dict[int, list[int]]:
    """The prompts to draw from, by their index among the pair's own or among the pieces."""
    if not args.flattest:
        own = shipped(home)
        return {int(word): own[int(word)] for word in args.chosen.split(",")}
    pieces = dict(enumerate(library(home, 64, args.modules)))
    spread = {index: _spread(plain, piece) for index, piece in pieces.items()}
    flattest = sorted(spread, key=lambda index: -spread[index])[: args.flattest]
    return {index: pieces[index] for index in flattest}


def _spread(plain: Server, prompt: list[int]) -> int:
    """How many different continuations the plain server's first samples have."""
    return len({tuple(ids) for ids in _draws(plain, prompt, 1.0, AT_ONCE)["ids"]})


def draw_all(server: Server, prompts: dict[int, list[int]], args: argparse.Namespace) -> dict[str, Any]:
    """All samples by "prompt temperature", and the mean accept length of the requests."""
    return {
        f"{index} {temperature}": _draws(server, prompt, float(temperature), args.draws)
        for index, prompt in prompts.items()
        for temperature in args.temperatures.split(",")
    }


def _draws(server: Server, prompt: list[int], temperature: float, draws: int) -> dict[str, Any]:
    params = {"temperature": temperature, "max_new_tokens": LENGTH, "ignore_eos": True, "n": AT_ONCE}
    with ThreadPoolExecutor(4) as pool:
        replies = pool.map(lambda _: server.generate(prompt, **params), range(-(-draws // AT_ONCE)))
        samples = [one for reply in replies for one in reply]
    steps = sum(one["meta_info"].get("spec_verify_ct", 0) for one in samples)
    tokens = sum(one["meta_info"]["completion_tokens"] for one in samples)
    return {"ids": [ids_of(one) for one in samples], "accept": tokens / steps if steps else None}


def compare(plain: dict[str, Any], tree: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each prompt, temperature and length."""
    rows = []
    for key, ours in tree.items():
        for length in range(1, LENGTH + 1):
            one = Counter(tuple(ids[:length]) for ids in plain[key]["ids"])
            other = Counter(tuple(ids[:length]) for ids in ours["ids"])
            rows.append({"case": key, "length": length, "accept": ours["accept"], **_test(one, other)})
    return rows


def _test(one: Counter[tuple[int, ...]], other: Counter[tuple[int, ...]]) -> dict[str, Any]:
    own = [key for key in one.keys() | other.keys() if one[key] + other[key] >= LEAST]
    table = [[one[key] for key in own], [other[key] for key in own]]
    rest = [sum(counts.values()) - sum(row) for counts, row in zip((one, other), table, strict=True)]
    if sum(rest) >= LEAST:
        table = [[*row, pooled] for row, pooled in zip(table, rest, strict=True)]
    total = [sum(one.values()), sum(other.values())]
    distance = sum(abs(a / total[0] - b / total[1]) for a, b in zip(*table, strict=True)) / 2
    p = 1.0 if len(table[0]) < 2 else float(chi2_contingency(table).pvalue)
    return {"draws": total, "categories": len(table[0]), "distance": distance, "p": p}


def report(rows: list[dict[str, Any]], args: argparse.Namespace) -> int:
    print(
        f"tree {args.tree}, {LENGTH} tokens a sample, the first from prefill; accept: tokens / verify steps"
    )
    print("| prompt, temperature | tokens | draws | categories | total variation | p | accept |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        shown = f"{row['distance']:.4f} | {row['p']:.4f} | {row['accept']:.3f}"
        print(f"| {row['case']} | {row['length']} | {row['draws']} | {row['categories']} | {shown} |")
    least = min(row["p"] for row in rows) * len(rows)
    print(f"smallest p after Bonferroni over {len(rows)} tests: {min(1.0, least):.4f} (fails below 0.001)")
    return 1 if least < 0.001 else 0


if __name__ == "__main__":
    main()
