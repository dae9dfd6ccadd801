"""Which arms can still win: arm and round effects by least squares, with noise pooled over all arms."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ddtree_ops.measure.statistics import Interval, student_quantile

Matrix = NDArray[np.float64]
PRIOR_NOISE = 0.05  # between two deploys of one arm, until visits of this sweep tell better
PRIOR_WEIGHT = 4  # degrees of freedom that the prior counts for


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One arm's time on the node within one round: its mean log score over the visit's cells."""

    arm: str
    round: int
    score: float  # mean of log(value)
    error: float = 0.0  # standard error of that mean, from the visit's own cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One arm in the race; `behind` is how far it trails the leader, on the log scale."""

    arm: str
    effect: float
    visits: int
    behind: float
    behind_error: float  # standard error of `behind`


@dataclass(frozen=True, kw_only=True, eq=False)
class Race:
    """All arms, best first, and the noise of one visit (log scale)."""

    standings: tuple[Standing, ...]
    noise: float
    freedom: float
    seen: Mapping[str, int]  # visits by arm, failed ones too
    effects: Mapping[str, float]
    covariance: Mapping[tuple[str, str], float]

    @property
    def leader(self) -> str:
        return self.standings[0].arm

    def difference(self, arm: str, other: str) -> tuple[float, float]:
        """How far one arm is ahead of another (log scale), and the standard error of that."""
        of = self.covariance
        variance = of[arm, arm] + of[other, other] - 2 * of[arm, other]
        return self.effects[arm] - self.effects[other], math.sqrt(max(0.0, variance))

    def ratio(self, arm: str, other: str, level: float = 0.95) -> Interval | None:
        """arm / other, paired by rounds through the model, with the noise pooled over all arms."""
        if arm not in self.seen or other not in self.seen:
            return None
        ahead, error = self.difference(arm, other)
        half = student_quantile((1 + level) / 2, self.freedom) * error
        return Interval(
            value=math.exp(ahead),
            low=math.exp(ahead - half),
            high=math.exp(ahead + half),
            level=level,
            count=min(self.seen[arm], self.seen[other]),
            method="least squares, pooled noise",
        )

    def out(self, confidence: float) -> tuple[Standing, ...]:
        """The arms that cannot win any more at this confidence."""
        q = student_quantile(confidence, self.freedom)
        return tuple(s for s in self.standings[1:] if s.behind > q * s.behind_error)

    def settled(self, arms: Sequence[str], tolerance: float, confidence: float) -> bool:
        """Whether no one of `arms` can be ahead of the leader by more than the tolerance."""
        q, slack = student_quantile(confidence, self.freedom), math.log1p(tolerance)
        others = [s for s in self.standings if s.arm in arms and s.arm != self.leader]
        return all(q * s.behind_error - s.behind <= slack for s in others)


@lru_cache(maxsize=256)
def race(visits: tuple[Visit, ...], contenders: tuple[str, ...]) -> Race | None:
    """The state of the race among the contenders; None before any of them was measured.

    Model: score = arm + round + noise, by least squares weighted with each visit's own error, so that
    what slows a whole round (heat, neighbours, the hour) is charged to no arm, even after others were
    dropped.
    """
    arms = list(dict.fromkeys(visit.arm for visit in visits))
    running = [arm for arm in arms if arm in set(contenders)]
    if not running:
        return None
    design, scores = _design(visits, arms)
    weights = np.array([1 / (PRIOR_NOISE**2 + visit.error**2) for visit in visits])
    weights /= weights.mean()
    inverse: Matrix = np.asarray(np.linalg.pinv((design.T * weights) @ design), dtype=np.float64)
    effects = inverse @ design.T @ (weights * scores)
    residuals = (scores - design @ effects) * np.sqrt(weights)
    noise, freedom = _noise(visits, residuals, int(np.linalg.matrix_rank(design)))
    inverse *= noise**2
    found = Race(
        standings=(),
        noise=noise,
        freedom=freedom,
        seen=Counter(visit.arm for visit in visits),
        effects={arm: float(effect) for arm, effect in zip(arms, effects, strict=False)},
        covariance={(a, b): float(inverse[i, j]) for i, a in enumerate(arms) for j, b in enumerate(arms)},
    )
    leader = max(running, key=lambda arm: found.effects[arm])
    standings = [_standing(found, arm, leader) for arm in running]
    standings.sort(key=lambda standing: (standing.behind, standing.arm != leader))
    return replace(found, standings=tuple(standings))


def _design(visits: Sequence[Visit], arms: Sequence[str]) -> tuple[Matrix, Matrix]:
    """One column an arm, one a round after the first."""
    rounds = sorted({visit.round for visit in visits})
    design = np.zeros((len(visits), len(arms) + len(rounds) - 1))
    for row, visit in enumerate(visits):
        design[row, arms.index(visit.arm)] = 1
        position = rounds.index(visit.round)
        if position:
            design[row, len(arms) + position - 1] = 1
    return design, np.array([visit.score for visit in visits])


def _noise(visits: Sequence[Visit], residuals: Matrix, rank: int) -> tuple[float, float]:
    """The noise of one visit: residuals, joined with what the cells say and a prior for restarts."""
    within = float(np.mean([visit.error**2 for visit in visits]))
    prior = within + PRIOR_NOISE**2
    freedom = max(0, len(visits) - rank)
    squares = float(residuals @ residuals) + PRIOR_WEIGHT * prior
    return math.sqrt(squares / (freedom + PRIOR_WEIGHT)), freedom + PRIOR_WEIGHT


def _standing(found: Race, arm: str, leader: str) -> Standing:
    behind, error = found.difference(leader, arm)
    return Standing(
        arm=arm, effect=found.effects[arm], visits=found.seen[arm], behind=behind, behind_error=error
    )
