"""Sweeps on a lab node: killed and resumed, failing arms as results, and the node back at what it served."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.lab.hosts import Kind, Lab
from ddtree_ops.run.ledger import read_sweep

from .conftest import Operator

KILLS = 5
LEASE_S = "6"
PROMPTS = (
    "Write a short poem about the ocean.",
    "Write a quicksort function in Python with comments.",
    "Explain how a TCP connection is opened.",
    "Tell a short story about a lighthouse keeper.",
)


@pytest.fixture(scope="module")
def lab(fleet: Callable[[Kind, int], Lab]) -> Lab:
    return fleet(Kind.EMBEDDED, 1)


@pytest.fixture
def node(fresh: Operator) -> Iterator[Operator]:
    """An operator with a workload that the reference model knows."""
    lines = (json.dumps({"prompt": prompt}) for prompt in PROMPTS)
    (fresh.home / "known.jsonl").write_text("\n".join(lines) + "\n")
    return fresh


def words(operator: Operator, out: str, *more: str) -> tuple[str, ...]:
    return (
        "sweep", "budgets", "--workload", str(operator.home / "known.jsonl"), "--fresh", "flush",
        "--objective", "output_rate", "--requests", "4", "--max-tokens", "48", "--repeats", "1", "--lease", LEASE_S,
        "--out", str(operator.home / out), "--yes", "--json", *more,
    )  # fmt: skip


def cells(folder: Path) -> Counter[str]:
    """How often each cell is in the ledger."""
    entries = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    return Counter(json.dumps(entry["data"]["cell"]) for entry in entries if entry["kind"] == "cell")


def as_it_was(operator: Operator, unit: str) -> dict[str, Any]:
    status = operator.status()
    return {
        "unit": operator.serving()[1] == unit, "serves": operator.healthy(), "guard": status["guard"],
        "lock": status["lock"], "release": status["release"] or "0",
    }  # fmt: skip


BACK = {"unit": True, "serves": True, "guard": None, "lock": None, "release": "0"}


@pytest.mark.timeout(900)
def test_a_sweep_killed_five_times_comes_to_the_same_decision_and_runs_no_cell_twice(node: Operator) -> None:
    _, unit = node.serving()
    grid = ("--budgets", "1,8", "--topk", "4")
    began = time.monotonic()
    whole = node.ops(*words(node, "whole", *grid), code=0, timeout_s=600).node["decision"]
    took = time.monotonic() - began
    assert as_it_was(node, unit) == BACK
    moments = random.Random(5)
    for _ in range(KILLS):
        sweep = node.start(*words(node, "killed", *grid, "--resume"))
        with suppress(subprocess.TimeoutExpired):
            sweep.wait(took * moments.uniform(0.05, 0.4))
        sweep.kill()
        sweep.wait()
    ran = node.ops(*words(node, "killed", *grid, "--resume"), code=0, timeout_s=600).node
    assert as_it_was(node, unit) == BACK
    assert set(cells(node.home / "killed").values()) == {1}
    equal = {whole["winner"]["id"]} | {
        ranked["id"] for ranked in whole["ranking"] if ranked["note"].startswith("no difference shown")
    }
    assert ran["decision"]["winner"]["id"] in equal
    assert (ran["decision"]["final"], whole["final"]) == (True, True)
    state, setting = read_sweep(node.home / "killed")
    assert (len(state.results) >= 8, setting.node) == (True, node.name)


def test_arms_that_garble_are_results_with_their_first_wrong_token_and_the_sweep_goes_on(
    node: Operator,
) -> None:
    _, unit = node.serving()
    ran = node.ops(
        *words(node, "stock", "--budgets", "7,16", "--topk", "4", "--patches", "none", "--no-baselines"),
        code=0,
        timeout_s=600,
    ).node
    (failure,) = ran["decision"]["failures"]
    assert (failure["arm"], failure["kind"]) == ("16/4", "garbled")
    assert "prefill chooses" in failure["first_wrong"]
    assert "16/4" not in [ranked["id"] for ranked in ran["decision"]["ranking"]]
    assert as_it_was(node, unit) == BACK
    for page in ran["reports"]:
        assert "16/4" in Path(page).read_text()


def test_an_interrupted_sweep_puts_the_node_back_and_a_second_one_is_refused_meanwhile(
    node: Operator,
) -> None:
    node.profile["environment"]["REFERENCE_ENGINE_FAULT"] = "slow-load=60"
    node.save()
    _, unit = node.serving()
    sweep = node.start(*words(node, "interrupted", "--budgets", "8", "--topk", "4", "--no-baselines"))
    try:
        while node.status()["guard"] is None:
            time.sleep(0.2)
        refused = node.ops(*words(node, "second", "--budgets", "8"), code=3).node["error"]
        same = node.ops(*words(node, "interrupted", "--budgets", "8", "--resume"), code=3).json["error"]
    finally:
        sweep.send_signal(signal.SIGINT)
        ended = sweep.wait(120)
    assert refused["what"] in ("lock", "guard")
    assert "a sweep at work in it" in same["message"]
    assert ended == 130
    assert as_it_was(node, unit) == BACK


def test_the_winner_is_deployed_when_asked_for(node: Operator) -> None:
    ran = node.ops(
        *words(node, "winner", "--budgets", "8", "--topk", "4", "--no-baselines", "--deploy-winner"),
        code=0,
        timeout_s=600,
    ).node
    status = node.status()
    assert (ran["outcome"], status["release"], status["budget"]) == ("confirmed", ran["release"], 8)
    assert (status["guard"], status["lock"]) == (None, None)


BAD: list[tuple[str, tuple[str, ...], int, str]] = [
    ("no numbers", ("--budgets", "8,x"), 2, "expected whole numbers above 0"),
    ("no mode", ("--budgets", "8", "--graphs", "maybe"), 2, "expected on, off or on,off"),
    ("no workload", ("--budgets", "8", "--workload", "/nonexistent"), 2, "expected a file or one of"),
]


@pytest.mark.parametrize(("more", "code", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_what_cannot_be_swept_is_refused_before_the_node_is_touched(
    more: tuple[str, ...], code: int, message: str, node: Operator
) -> None:
    before = node.serving()
    error = node.ops(*words(node, "bad", *more), code=code).json["error"]
    assert message in error["message"]
    assert node.serving() == before


def test_a_folder_with_another_sweep_is_left_alone(node: Operator) -> None:
    (node.home / "other").mkdir()
    asked = {"node": node.name, "plan": {"arms": [], "workloads": []}, "mark": "", "command": "", "when": ""}
    (node.home / "other" / "sweep.json").write_text(json.dumps(asked))
    for more, message in (((), "--resume goes on"), (("--resume",), "resume with the options")):
        error = node.ops(*words(node, "other", "--budgets", "8", *more), code=2).json["error"]
        assert message in error["hint"]
