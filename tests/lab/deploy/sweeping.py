"""What tests of sweeps share: how one is asked for, killed, and seen to have left the node as it was."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .conftest import Operator

LEASE_S = "6"
PROMPTS = (
    "Write a short poem about the ocean.",
    "Write a quicksort function in Python with comments.",
    "Explain how a TCP connection is opened.",
    "Tell a short story about a lighthouse keeper.",
)
BACK = {"unit": True, "serves": True, "guard": None, "lock": None, "release": "0"}


def with_prompts(operator: Operator) -> Operator:
    """The same operator with a workload that the reference model knows."""
    lines = (json.dumps({"prompt": prompt}) for prompt in PROMPTS)
    (operator.home / "known.jsonl").write_text("\n".join(lines) + "\n")
    return operator


def words(operator: Operator, out: str, *more: str) -> tuple[str, ...]:
    return (
        "sweep", "budgets", "--workload", str(operator.home / "known.jsonl"), "--fresh", "flush",
        "--objective", "output_rate", "--requests", "4", "--max-tokens", "48", "--repeats", "1", "--lease", LEASE_S,
        "--out", str(operator.home / out), "--yes", "--json", *more,
    )  # fmt: skip


def as_it_was(operator: Operator, unit: str) -> dict[str, Any]:
    status = operator.status()
    return {
        "unit": operator.serving()[1] == unit, "serves": operator.healthy(), "guard": status["guard"],
        "lock": status["lock"], "release": status["release"] or "0",
    }  # fmt: skip


def cells(folder: Path) -> Counter[str]:
    """How often each cell is in the ledger."""
    entries = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    return Counter(json.dumps(entry["data"]["cell"]) for entry in entries if entry["kind"] == "cell")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One sweep that ran through, and the same one killed and resumed."""

    whole: Any
    killed: Any
    kills: int
    seconds: float  # of the one that ran through

    def equals(self, name: str) -> set[str]:
        """The winner of one of them, and the arms that it could not tell from it."""
        made = getattr(self, name)
        told = {one["id"] for one in made["ranking"] if one["note"].startswith("no difference shown")}
        return {made["winner"]["id"], *told}


def killed_and_resumed(
    operator: Operator, grid: tuple[str, ...], *, kills: int, timeout_s: float, longest: float = 0.25
) -> Pair:
    """Sweeps a grid twice; SIGKILL ends the second `kills` times, and it is resumed.

    Each time it runs for a random share, `longest` at most, of what the first sweep took.
    """
    began = time.monotonic()
    whole = operator.ops(*words(operator, "whole", *grid), code=0, timeout_s=timeout_s).node["decision"]
    took = time.monotonic() - began
    moments = random.Random(5)
    ended = 0
    for _ in range(kills):
        sweep = operator.start(*words(operator, "killed", *grid, "--resume"))
        with suppress(subprocess.TimeoutExpired):
            sweep.wait(took * moments.uniform(longest / 8, longest))
            break  # it was done before its turn to be killed came
        sweep.kill()
        sweep.wait()
        ended += 1
    ran = operator.ops(*words(operator, "killed", *grid, "--resume"), code=0, timeout_s=timeout_s).node
    return Pair(whole=whole, killed=ran["decision"], kills=ended, seconds=took)
