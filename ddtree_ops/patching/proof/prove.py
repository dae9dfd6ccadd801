"""Many cases over one tree, each budget with an engine of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from .attention import Engine, Tree
from .cases import REAL, SMALL, Case, generate, known_fault
from .compare import verdict
from .outcome import Tally, Verdict
from .selftest import machine


def verdicts(
    tree: Tree, cases: Sequence[Case], *, block: int, device: str = "cpu", dtype: str = "float32"
) -> Iterator[Verdict]:
    """The verdict of each case, budget by budget: a server has one budget, so has its backend."""
    for budget in dict.fromkeys(case.budget for case in cases):
        engine = Engine(tree, block, budget, device, getattr(torch, dtype))
        for case in cases:
            if case.budget == budget:
                yield verdict(engine, case)


def document(
    trees: Sequence[Path],
    *,
    budgets: Sequence[int],
    block: int = 8,
    count: int = 60,
    seed: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
    batches: Sequence[int] = (),
    until_wrong: int = 0,
) -> dict[str, Any]:
    """The JSON of `patch prove` over `count` cases; `until_wrong` stops once so many had wrong rows."""
    tally, bad = Tally(), 0
    cases = list(
        generate(
            count,
            budgets,
            seed=seed,
            heads=SMALL if device == "cpu" else REAL,
            **({"batches": batches} if batches else {}),
        )
    )
    for one in verdicts(Tree(trees), cases, block=block, device=device, dtype=dtype):
        tally.add(one)
        bad += bool(one.wrong)
        if until_wrong and bad >= until_wrong:
            break
    return {
        **tally.document(),
        "budgets": list(budgets),
        "block": block,
        "dtype": dtype,
        **machine(device),
    }


def beside(folder: Path, budgets: Sequence[int], count: int) -> dict[str, Any]:
    """A release's `stock` tree on the known batch, and its `patched` files on many cases, both on a CPU."""
    stock, patched = folder / "stock", folder / "patched"
    known = Tally()
    for one in verdicts(Tree([stock]), [known_fault()], block=8):
        known.add(one)
    return {
        "stock": {**known.document(), "findings": []},
        "patched": document([patched, stock], budgets=budgets, count=count),
    }
