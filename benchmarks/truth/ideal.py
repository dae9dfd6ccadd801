"""What a client without any delay would have measured: the schedule itself, through our own definitions."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from server import STEP_NS, Plan, plan

from ddtree_ops.measure.client import LoadResult, Outcome, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One closed-loop run against the truth server."""

    concurrency: int
    requests: int
    warmup: int
    tokens: int = 256
    ramp_s: float = 0.0
    seed: int = 0


def sample(
    index: int, one: Plan, start: float, *, warmup: bool = False, sent: Sequence[float] | None = None
) -> Sample:
    """The sample of a request that starts at `start` and sees its schedule without delay.

    `sent`: when each piece was sent after all, in seconds after the start; left out: when it was due.
    """
    due = [one.first_ns / 1e9 + number * STEP_NS / 1e9 for number in range(1 + len(one.steps))]
    counts = accumulate((1, *one.steps))
    arrivals = [(start + after, count) for after, count in zip(sent or due, counts, strict=True)]
    return Sample(
        index=index, prompt="truth", start=start, end=arrivals[-1][0], outcome=Outcome.OK, warmup=warmup,
        arrivals=tuple(arrivals), tokens=one.tokens, verify_steps=len(one.steps), prompt_tokens=8,
    )  # fmt: skip


def ideal(run: Run) -> LoadResult:
    """Every user sends its next request at the very moment its last answer is complete."""
    slots = [(run.ramp_s * slot / run.concurrency, slot) for slot in range(run.concurrency)]
    heapq.heapify(slots)
    samples = []
    for index in range(run.warmup + run.requests):
        start, slot = heapq.heappop(slots)
        samples.append(sample(index, plan(index, run.tokens, run.seed), start, warmup=index < run.warmup))
        heapq.heappush(slots, (samples[-1].end, slot))
    measured = [one for one in samples if not one.warmup]
    window = min(one.start for one in measured), max(one.start for one in samples)
    if len(measured) < 2 * run.concurrency:
        window = window[0], max(one.end for one in measured)
    wall = max(one.end for one in samples)
    return LoadResult(samples=tuple(samples), window=window, wall_s=wall, cpu_s=0.0, parse_cpu_s=0.0)
