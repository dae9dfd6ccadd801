"""Intervals, ratios and words for comparing arms, on the log scale, where noise is so many per cent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

DRAWS = 4000
FEW = 8  # below this many values a bootstrap has too few distinct draws: Student's t instead


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with its confidence interval; infinite ends mean that nothing is known of the spread."""

    value: float
    low: float
    high: float
    level: float
    count: int
    method: str  # "bootstrap" | "t" | "single value"

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def known(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


def student_quantile(probability: float, freedom: float) -> float:
    """Student's t quantile."""
    return float(special.stdtrit(freedom, probability))


def mean_interval(values: Sequence[float], *, level: float = 0.95, seed: int = 0) -> Interval:
    """The mean's interval: bootstrap with Hesterberg's expanded percentiles, Student's t for few values.

    Percentiles are widened to Φ(−√(n/(n−1))·t) since plain ones are too narrow for small n
    (T. Hesterberg, "What Teachers Should Know about the Bootstrap", 2015, section 5.3).
    """
    data = np.asarray(values, dtype=float)
    count, mean = data.size, float(data.mean())
    if count < 2:
        return Interval(
            value=mean, low=-math.inf, high=math.inf, level=level, count=count, method="single value"
        )
    t = student_quantile((1 + level) / 2, count - 1)
    if count < FEW:
        half = t * float(data.std(ddof=1)) / math.sqrt(count)
        return Interval(value=mean, low=mean - half, high=mean + half, level=level, count=count, method="t")
    tail = float(special.ndtr(-math.sqrt(count / (count - 1)) * t))
    low, high = np.quantile(_resampled_means(data, seed), (tail, 1 - tail))
    return Interval(
        value=mean, low=float(low), high=float(high), level=level, count=count, method="bootstrap"
    )


def _resampled_means(data: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    draw = np.random.default_rng(seed)
    means: NDArray[np.float64] = data[draw.integers(0, data.size, (DRAWS, data.size))].mean(axis=1)
    return means


def geometric_interval(values: Sequence[float], *, level: float = 0.95, seed: int = 0) -> Interval:
    """The geometric mean of positive values with its interval."""
    logs = mean_interval([math.log(value) for value in values], level=level, seed=seed)
    return _exponential(logs)


def grouped_interval(groups: Sequence[Sequence[float]], *, level: float = 0.95) -> Interval:
    """The geometric mean over groups that weigh alike; only scatter within groups counts as noise.

    Groups are workloads at concurrencies: that they differ from one another is no uncertainty.
    """
    logs = [np.log(np.asarray(group, dtype=float)) for group in groups if len(group)]
    value = float(np.mean([log.mean() for log in logs]))
    count, freedom = sum(log.size for log in logs), sum(log.size - 1 for log in logs)
    if not freedom:
        return _exponential(mean_interval([value], level=level))
    variance = sum(float(((log - log.mean()) ** 2).sum()) for log in logs) / freedom
    error = math.sqrt(sum(variance / log.size for log in logs)) / len(logs)
    half = student_quantile((1 + level) / 2, freedom) * error
    return _exponential(
        Interval(value=value, low=value - half, high=value + half, level=level, count=count, method="t")
    )


def paired_ratio(
    arm: Mapping[int, float], base: Mapping[int, float], *, level: float = 0.95, seed: int = 0
) -> Interval | None:
    """arm / base over the rounds that both were measured in; None when they share none.

    Values of one round were taken close together, so that what drifts cancels in their ratio.
    """
    shared = sorted(set(arm) & set(base))
    if not shared:
        return None
    logs = [math.log(arm[key] / base[key]) for key in shared]
    return _exponential(mean_interval(logs, level=level, seed=seed))


def _exponential(logs: Interval) -> Interval:
    return Interval(
        value=math.exp(logs.value),
        low=math.exp(logs.low) if logs.low > -700 else 0.0,
        high=math.exp(logs.high) if logs.high < 700 else math.inf,
        level=logs.level,
        count=logs.count,
        method=logs.method,
    )


def narrow(interval: Interval, tolerance: float) -> bool:
    """The stop rule: whether the estimate is known to ± tolerance (0.02: two per cent of its value)."""
    return interval.known and interval.high - interval.low <= 2 * tolerance * abs(interval.value)


def say_ratio(ratio: Interval | None, name: str, base: str, unit: str = "rounds") -> str:
    """A ratio in words; an interval that holds 1 shows no difference, and a single pair shows nothing."""
    if ratio is None:
        return f"{name} and {base} were never measured in the same round"
    if not ratio.known or ratio.count < 2:
        return f"{name} is {ratio.value:.2f} times {base} in a single round: no interval"
    span = f"{ratio.low:.2f} to {ratio.high:.2f}, {ratio.count} {unit}"
    if 1.0 in ratio:
        return f"no difference shown between {name} and {base}: ratio {ratio.value:.2f} ({span})"
    word = "faster" if ratio.value > 1 else "slower"
    return f"{name} is {word} than {base}: {ratio.value:.2f} times ({span})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How a baseline that was measured again and again changed over the sweep."""

    per_round: Interval  # growth factor from one round to the next
    span: float  # highest / lowest
    shown: bool
    words: str


def drift(baseline: Mapping[int, float]) -> Drift | None:
    """The trend of the baseline over rounds by least squares on logs; None with fewer than three."""
    if len(baseline) < 3:
        return None
    rounds = sorted(baseline)
    (slope, _), covariance = np.polyfit(rounds, [math.log(baseline[key]) for key in rounds], 1, cov=True)
    half = student_quantile(0.975, len(rounds) - 2) * math.sqrt(covariance[0, 0])
    trend = Interval(
        value=math.exp(slope),
        low=math.exp(slope - half),
        high=math.exp(slope + half),
        level=0.95,
        count=len(rounds),
        method="t",
    )
    span = max(baseline.values()) / min(baseline.values())
    shown = 1.0 not in trend and abs(trend.value - 1) > 1e-6
    ends = f"{trend.low - 1:+.1%} to {trend.high - 1:+.1%}"
    words = (
        f"the baseline drifted by {trend.value - 1:+.1%} a round ({ends})"
        if shown
        else "no drift of the baseline shown"
    )
    return Drift(
        per_round=trend,
        span=span,
        shown=shown,
        words=f"{words}; its highest is {span:.2f} times its lowest over {len(rounds)} rounds",
    )


def unpaired_ratio(
    arm: Sequence[Sequence[float]], base: Sequence[Sequence[float]], *, level: float = 0.95
) -> Interval:
    """arm / base as geometric means over groups of values that were not taken together (Welch, on logs)."""
    sides = [grouped_interval(groups, level=level) for groups in (arm, base)]
    count = min(side.count for side in sides)
    value = math.log(sides[0].value / sides[1].value)
    if not all(side.known and side.high < math.inf for side in sides):
        return _exponential(mean_interval([value], level=level))
    freedoms = [sum(len(group) - 1 for group in groups) for groups in (arm, base)]
    errors = [
        math.log(side.high / side.value) / student_quantile((1 + level) / 2, freedom)
        for side, freedom in zip(sides, freedoms, strict=True)
    ]
    squares = sum(error**2 for error in errors)
    fourths = sum(error**4 / freedom for error, freedom in zip(errors, freedoms, strict=True))
    freedom = squares**2 / fourths if fourths else min(freedoms)
    half = student_quantile((1 + level) / 2, freedom) * math.sqrt(squares)
    ends = Interval(
        value=value, low=value - half, high=value + half, level=level, count=count, method="Welch's t"
    )
    return _exponential(ends)
