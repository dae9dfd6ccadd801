"""From which accept length on a drafter counts as fitting its target."""

from __future__ import annotations

import pytest

from ddtree_ops.model.profile import Profile
from ddtree_ops.run.examine import least_accept

PROFILE = {"name": "k", "service": "s", "venv": "/v", "model": "/m", "drafter": "/d", "port": 1}


@pytest.mark.parametrize(
    ("budget", "block", "least"), [(16, 8, 1.7), (None, 8, 1.7), (2, 8, 1.4), (1, 8, 1.2), (16, 3, 1.4)]
)
def test_the_least_accept_length_is_what_budget_and_block_leave_room_for(
    budget: int | None, block: int, least: float
) -> None:
    assert least_accept(Profile(**PROFILE, budget=budget), block) == pytest.approx(least)
