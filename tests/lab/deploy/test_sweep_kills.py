"""A sweep that is killed again and again, and resumed: the same decision, and no cell twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ddtree_ops.lab.hosts import Kind, Lab
from ddtree_ops.run.ledger import read_sweep

from .conftest import Operator
from .sweeping import BACK, as_it_was, cells, killed_and_resumed, with_prompts

KILLS = 5


@pytest.fixture(scope="module")
def lab(fleet: Callable[[Kind, int], Lab]) -> Lab:
    return fleet(Kind.EMBEDDED, 1)


@pytest.mark.early
@pytest.mark.timeout(900)
def test_a_sweep_killed_five_times_comes_to_the_same_decision_and_runs_no_cell_twice(fresh: Operator) -> None:
    """Its arms are far apart: what other tests take from the machine meanwhile can't turn the decision."""
    node = with_prompts(fresh)
    _, unit = node.serving()
    grid = ("--budgets", "8,64,128", "--topk", "1", "--no-baselines")
    pair = killed_and_resumed(node, grid, kills=KILLS, timeout_s=600)
    assert as_it_was(node, unit) == BACK
    assert pair.kills == KILLS
    assert set(cells(node.home / "killed").values()) == {1}
    assert (pair.killed["final"], pair.whole["final"]) == (True, True)
    assert (pair.killed["winner"]["id"], pair.whole["winner"]["id"]) == ("8/1", "8/1")
    state, setting = read_sweep(node.home / "killed")
    assert (len(state.results) >= 6, setting.node) == (True, node.name)
