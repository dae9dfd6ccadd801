"""Sweeps on a lab node: failing arms as results, and the node back at what it served."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddtree_ops.lab.hosts import Kind, Lab

from .conftest import Operator
from .sweeping import BACK, as_it_was, with_prompts, words


@pytest.fixture(scope="module")
def lab(fleet: Callable[[Kind, int], Lab]) -> Lab:
    return fleet(Kind.EMBEDDED, 1)


@pytest.fixture
def node(fresh: Operator) -> Operator:
    return with_prompts(fresh)


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
