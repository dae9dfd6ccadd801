"""The whole grid on a real systemd host, through and killed: too long for every run, so marked `long`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ddtree_ops.lab.hosts import Kind, Lab

from .conftest import Operator
from .sweeping import BACK, as_it_was, cells, killed_and_resumed, with_prompts

GRID = ("--budgets", "4,8,16,32", "--topk", "1,4", "--graphs", "on,off")
SETTLED = ("--requests", "12", "--max-tokens", "96", "--repeats", "4")  # enough for the noise of such a node
KILLS = 5
HOURS = 3 * 3600


@pytest.fixture(scope="module")
def lab(fleet: Callable[[Kind, int], Lab]) -> Lab:
    return fleet(Kind.SYSTEMD, 1)


@pytest.mark.long
@pytest.mark.systemd
@pytest.mark.timeout(HOURS)
def test_a_grid_killed_five_times_comes_to_the_decision_of_one_that_ran_through(fresh: Operator) -> None:
    node = with_prompts(fresh)
    _, unit = node.serving()
    pair = killed_and_resumed(node, (*GRID, *SETTLED), kills=KILLS, longest=0.15, timeout_s=HOURS)
    if kept := os.environ.get("DDTREE_OPS_GRID_OUT"):
        found = {"whole": pair.whole, "killed": pair.killed, "kills": pair.kills, "seconds": pair.seconds}
        Path(kept).write_text(json.dumps(found, indent=1) + "\n")
    assert as_it_was(node, unit) == BACK
    assert pair.kills == KILLS
    assert set(cells(node.home / "killed").values()) == {1}
    assert (pair.killed["final"], pair.whole["final"]) == (True, True)
    assert pair.killed["winner"]["id"] in pair.equals("whole")
    assert pair.whole["winner"]["id"] in pair.equals("killed")
