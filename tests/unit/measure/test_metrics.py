"""Figures from samples, by hand-made samples whose figures are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddtree_ops.measure.client import LoadResult, Outcome, Sample
from ddtree_ops.measure.metrics import Limits, summarise

LONG = Sample(
    index=0, prompt="a", start=0.0, end=1.1, outcome=Outcome.OK, tokens=21, verify_steps=5, prompt_tokens=10,
    cached_tokens=4, arrivals=((0.1, 1), (0.3, 5), (0.5, 9), (0.7, 13), (0.9, 17), (1.1, 21)),
)  # fmt: skip
SHORT = Sample(
    index=1, prompt="b", start=0.0, end=0.4, outcome=Outcome.OK, tokens=3, verify_steps=2, prompt_tokens=10,
    cached_tokens=0, arrivals=((0.2, 1), (0.3, 2), (0.4, 3)),
)  # fmt: skip


def load(*samples, window=(0.0, 1.0), **more):
    return LoadResult(samples=samples, window=window, wall_s=1.1, cpu_s=0.011, parse_cpu_s=0.001, **more)


def test_both_accept_lengths_are_given_and_differ():
    """Token-weighted is Σ/Σ, request-weighted is the mean of ratios."""
    summary = summarise(load(LONG, SHORT))
    assert summary.accept_token_weighted == pytest.approx(24 / 7)
    assert summary.accept_request_weighted == pytest.approx((21 / 5 + 3 / 2) / 2)


def test_latencies_of_one_request():
    """TTFT, E2E, TPOT, user rate and ms a step, each by its definition."""
    summary = summarise(load(LONG))
    assert summary.ttft.mean == pytest.approx(0.1)
    assert summary.e2e.mean == pytest.approx(1.1)
    assert summary.tpot.mean == pytest.approx(1.0 / 20)
    assert summary.user_rate.mean == pytest.approx(20 / 1.0)
    assert summary.step.mean == pytest.approx(0.2)


def test_gaps_weigh_arrivals_and_token_latencies_weigh_tokens():
    """Five gaps of 200 ms with 4 tokens each, two of 100 ms with one."""
    summary = summarise(load(LONG, SHORT))
    assert (summary.gap.count, summary.itl.count) == (7, 22)
    assert summary.itl.mean == pytest.approx((20 * 0.05 + 2 * 0.1) / 22)


def test_the_window_counts_arrivals_within_it():
    """Tokens that arrive after the window, or before it, are not its throughput."""
    assert summarise(load(LONG, window=(0.2, 1.0))).output_rate == pytest.approx(16 / 0.8)
    assert summarise(load(LONG)).output_rate_whole == pytest.approx(21 / 1.1)


def test_warm_up_still_loads_the_window():
    """A warm-up request's tokens are delivered load, but its latency is nobody's."""
    summary = summarise(load(replace(LONG, warmup=True), SHORT))
    assert summary.output_rate == pytest.approx(20)
    assert (summary.requests, summary.tokens) == (1, 3)


def test_a_few_failures_are_tolerated_and_many_are_not():
    """One in a hundred is noise; one in ten is a finding that forbids comparing."""
    bad = replace(SHORT, outcome=Outcome.OVERLOADED, detail="busy", tokens=None, arrivals=())
    assert summarise(load(*[LONG] * 120, bad)).usable is True
    many = summarise(load(*[LONG] * 9, bad))
    assert many.usable is False
    assert "1 of 10 requests: overloaded: busy" in many.findings


def test_a_run_without_an_answer_has_no_figures():
    """All failed: no figure is invented."""
    summary = summarise(load(replace(SHORT, outcome=Outcome.LOST, tokens=None, arrivals=())))
    assert (summary.ttft, summary.output_rate, summary.usable) == (None, None, False)


def test_cache_hits_are_a_share_of_prompt_tokens():
    """Four of twenty prompt tokens came from the cache."""
    assert summarise(load(LONG, SHORT)).cached_share == pytest.approx(0.2)


def test_limits_look_at_each_request():
    """Goodput is the rate of requests within every limit."""
    summary = summarise(load(LONG, SHORT), Limits(ttft_s=0.15, e2e_s=2))
    assert summary.goodput == pytest.approx(1 / 1.1)
    assert summarise(load(LONG, SHORT)).goodput is None
