"""Orders of arms that give drift no favourites, and how many cells one visit of an arm needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

Values = tuple[tuple[float, ...], ...]  # of one visit: a tuple for each workload × concurrency


def balanced(arms: Sequence[str], round_: int) -> tuple[str, ...]:
    """The order of one round: there and back again, then the same from another start.

    Over any two rounds from an even one every arm has the same mean position, so a steady drift
    charges all alike; and the last arm of an even round is the first of the next: no restart between.
    """
    if not arms:
        return ()
    turn = (round_ // 2) % len(arms)
    order = (*arms[turn:], *arms[:turn])
    return order[::-1] if round_ % 2 else order


@lru_cache(maxsize=4096)
def score(values: Values) -> tuple[float, float]:
    """Mean log score of one visit over its groups of cells (a workload at a concurrency), and its error.

    Every group weighs the same, however often it was repeated; the scatter of repeats is pooled.
    """
    logs = [np.log(np.asarray(group, dtype=float)) for group in values]
    mean = float(np.mean([group.mean() for group in logs]))
    freedom = sum(group.size - 1 for group in logs)
    if not freedom:
        return mean, math.inf
    variance = sum(float(((group - group.mean()) ** 2).sum()) for group in logs) / freedom
    return mean, math.sqrt(sum(variance / group.size for group in logs)) / len(logs)


def needs_more(values: Values, *, least: int, most: int, error: float) -> bool:
    """Whether another repeat of each group is worth its time: not yet narrow, and below the most."""
    repeats = min((len(group) for group in values), default=0)
    if repeats < least:
        return True
    return repeats < most and score(values)[1] > error
