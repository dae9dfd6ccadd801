"""From samples to the figures of a report; what each one counts is said where it is computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddtree_ops.measure.client import LoadResult, Outcome, Sample

FAILED_SHARE = 0.01  # more failures than this, and the load's figures are not to be compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A distribution in a few figures."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a request must keep to be good; seconds, None: no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def kept_by(self, sample: Sample) -> bool:
        """Whether a request that ended well stayed within every limit."""
        pairs = ((self.ttft_s, sample.ttft), (self.tpot_s, sample.tpot), (self.e2e_s, sample.e2e))
        return sample.ok and all(
            limit is None or (value is not None and value <= limit) for limit, value in pairs
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One load in figures. Times are seconds, rates per second; None: the server did not say enough."""

    requests: int  # measured, warm-up left out
    outcomes: tuple[tuple[str, int], ...]
    tokens: int
    ttft: Spread | None
    e2e: Spread | None
    tpot: Spread | None  # decode time / (tokens − 1), over requests
    itl: Spread | None  # gap before an arrival / its tokens, over tokens
    gap: Spread | None  # gap before an arrival, over arrivals: the stutter that a reader sees
    user_rate: Spread | None  # tokens a second of one user while decoding, over requests
    step: Spread | None  # decode time / verify steps, over requests
    output_rate: float | None  # tokens a second of all users, in the window of full load
    output_rate_whole: float | None  # tokens / time from the first start to the last end
    request_rate: float
    goodput: float | None  # requests a second that kept the limits
    accept_token_weighted: float | None  # Σ tokens / Σ verify steps
    accept_request_weighted: float | None  # mean over requests of tokens / verify steps
    cached_share: float | None  # prompt tokens that came from the prefix cache
    reasoning_share: float | None
    visible: Spread | None  # seconds to the first text that is not reasoning
    cpu_per_1000: float | None  # seconds of the client per 1,000 tokens, reading included
    client_busy: float  # share of its core that the client used during the load
    findings: tuple[str, ...]
    usable: bool  # False: do not compare; findings say why


def summarise(result: LoadResult, limits: Limits | None = None) -> Summary:
    """The figures of one load."""
    measured = result.measured
    good = [sample for sample in measured if sample.ok]
    counted = [sample for sample in good if sample.tokens]
    tokens = sum(sample.tokens or 0 for sample in counted)
    gaps, weights = _gaps(counted)
    first = min((sample.start for sample in measured), default=0.0)
    whole = max((sample.end for sample in measured), default=0.0) - first
    all_counted = len(counted) == len(good) and bool(good)
    findings, usable = _findings(result, measured, good, counted)
    cpu, every = result.cpu_s + result.parse_cpu_s, sum(s.tokens or 0 for s in result.samples)
    return Summary(
        requests=len(measured),
        outcomes=tuple(sorted(Counter(sample.outcome.value for sample in measured).items())),
        tokens=tokens,
        ttft=spread(sample.ttft for sample in good),
        e2e=spread(sample.e2e for sample in good),
        tpot=spread(sample.tpot for sample in counted),
        itl=_spread(np.repeat(gaps / weights, weights.astype(int)) if gaps.size else gaps),
        gap=_spread(gaps),
        user_rate=spread(sample.rate for sample in counted),
        step=spread(sample.step for sample in counted),
        output_rate=_window_rate(result) if all_counted else None,
        output_rate_whole=tokens / whole if all_counted and whole > 0 else None,
        request_rate=len(good) / whole if whole > 0 else 0.0,
        goodput=None if limits is None else sum(map(limits.kept_by, measured)) / whole if whole > 0 else 0.0,
        accept_token_weighted=accept_token_weighted(counted),
        accept_request_weighted=_mean(sample.accept_length for sample in counted),
        cached_share=_share(good, "cached_tokens", "prompt_tokens"),
        reasoning_share=_share(counted, "reasoning_tokens", "tokens"),
        visible=spread(s.visible - s.start for s in good if s.visible is not None),
        cpu_per_1000=1000 * cpu / every if every else None,
        client_busy=result.cpu_s / result.wall_s if result.wall_s else 0.0,
        findings=findings,
        usable=usable,
    )


def spread(values: Iterable[float | None]) -> Spread | None:
    """The distribution of the values that are known; None without any."""
    return _spread(np.array([value for value in values if value is not None], dtype=float))


def _spread(values: NDArray[np.float64]) -> Spread | None:
    if values.size == 0:
        return None
    p50, p90, p99 = (float(x) for x in np.percentile(values, (50, 90, 99)))
    return Spread(
        count=int(values.size),
        mean=float(values.mean()),
        p50=p50,
        p90=p90,
        p99=p99,
        low=float(values.min()),
        high=float(values.max()),
    )


def accept_token_weighted(samples: Sequence[Sample]) -> float | None:
    """Σ completion_tokens / Σ spec_verify_ct over the requests that report steps: long answers weigh more."""
    pairs = [(sample.tokens or 0, sample.verify_steps) for sample in samples if sample.verify_steps]
    steps = sum(count for _, count in pairs)
    return sum(tokens for tokens, _ in pairs) / steps if steps else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _share(samples: Sequence[Sample], part: str, whole: str) -> float | None:
    pairs = [(getattr(sample, part), getattr(sample, whole)) for sample in samples]
    known = [(a, b) for a, b in pairs if a is not None and b]
    return sum(a for a, _ in known) / sum(b for _, b in known) if known else None


def _gaps(samples: Sequence[Sample]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gaps between arrivals and the tokens that ended each, where counts came with the stream."""
    gaps, weights = [np.zeros(0)], [np.zeros(0)]
    for sample in samples:
        arrivals = np.array(sample.arrivals, dtype=float)
        if len(arrivals) > 1 and arrivals[0, 1] > 0:
            gaps.append(np.diff(arrivals[:, 0]))
            weights.append(np.diff(arrivals[:, 1]))
    return np.concatenate(gaps), np.concatenate(weights)


def _window_rate(result: LoadResult) -> float | None:
    """Tokens that arrived within the window of full load, warm-up requests' own included, a second."""
    start, end = result.window
    if end <= start:
        return None
    inside = 0
    for sample in result.samples:
        before = 0
        for at, so_far in sample.arrivals:
            inside += so_far - before if start <= at < end else 0
            before = so_far
        if sample.tokens and not before and start <= sample.end < end:  # counted once, at the end
            inside += sample.tokens
    return inside / (end - start)


def _findings(
    result: LoadResult, measured: Sequence[Sample], good: Sequence[Sample], counted: Sequence[Sample]
) -> tuple[tuple[str, ...], bool]:
    found, usable = list(result.findings), not result.gave_up
    bad = [sample for sample in measured if sample.outcome not in (Outcome.OK, Outcome.CUT)]
    for outcome, count in sorted(Counter(sample.outcome for sample in bad).items()):
        detail = next(sample.detail for sample in bad if sample.outcome is outcome)
        found.append(f"{count} of {len(measured)} requests: {outcome}{': ' + detail if detail else ''}")
    if not good or len(bad) > FAILED_SHARE * len(measured):
        usable = False
    if any(sample.outcome is Outcome.LOST for sample in bad) and good:
        found.append("connections were lost under load: did the server restart?")
        usable = False
    if len(counted) < len(good):
        missing = len(good) - len(counted)
        found.append(f"{missing} of {len(good)} answers came without a token count: token figures left out")
        usable = False
    return tuple(found), usable
