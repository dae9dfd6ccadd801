"""Many cases over one tree, each budget with an engine of its own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

from .attention import Engine, Tree
from .cases import REAL, SMALL, Case, generate
from .compare import verdict
from .outcome import Tally, Verdict


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
    """Runs `count` cases and gives the JSON of `patch prove`; `until_wrong` stops early once so many failed."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="triton")  # the interpreter computes masked-off lanes too
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
        "device": torch.cuda.get_device_name(0) if device == "cuda" else "cpu, interpreted",
        "dtype": dtype,
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
