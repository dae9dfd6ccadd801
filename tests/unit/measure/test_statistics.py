"""Intervals that hold what they should, ratios in pairs, and words that claim no more than is shown."""

from __future__ import annotations

import math
import random

import pytest

from ddtree_ops.measure.schedule import balanced, needs_more, score
from ddtree_ops.measure.statistics import (
    drift,
    geometric_interval,
    grouped_interval,
    mean_interval,
    narrow,
    paired_ratio,
    say_ratio,
    unpaired_ratio,
)


@pytest.mark.parametrize("count", [3, 5, 8, 12, 30])
def test_intervals_hold_the_mean_as_often_as_they_say(count):
    """Over 600 samples a 95 % interval covers the true mean in 93 to 97.5 % of them, few values or many."""
    draw = random.Random(count)
    samples = ([draw.gauss(10, 2) for _ in range(count)] for _ in range(600))
    covered = sum(10 in mean_interval(sample, seed=n) for n, sample in enumerate(samples))
    assert 0.93 <= covered / 600 <= 0.975


def test_a_single_value_has_no_interval():
    """One repeat tells nothing of its spread."""
    single = mean_interval([3.0])
    assert (single.value, single.known, single.method) == (3.0, False, "single value")
    assert geometric_interval([3.0]).high == math.inf


def test_the_method_is_named():
    """Student's t for few values, the bootstrap for more."""
    assert mean_interval([1.0, 2.0, 3.0]).method == "t"
    assert mean_interval([float(n) for n in range(9)]).method == "bootstrap"


def test_the_same_values_give_the_same_interval():
    """A report made twice shows the same ends."""
    values = [1.0, 4.0, 2.0, 8.0, 5.0, 7.0, 1.5, 3.0]
    assert mean_interval(values) == mean_interval(values)


def test_pairs_cancel_what_drifts():
    """Both arms slow down fivefold over the rounds; their ratio stays exact."""
    base = {n: 100.0 / (n + 1) for n in range(5)}
    arm = {n: 150.0 / (n + 1) for n in range(5)}
    ratio = paired_ratio(arm, base)
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((1.5, 1.5, 1.5))


def test_rounds_without_a_partner_do_not_count():
    """Only rounds that both ran in are paired; none shared, no ratio."""
    assert paired_ratio({0: 2.0, 1: 3.0}, {1: 1.0, 2: 9.0}).count == 1
    assert paired_ratio({0: 2.0}, {1: 1.0}) is None


def test_words_claim_what_is_shown_and_no_more():
    """Faster, slower, no difference, a single round, and no pair at all."""
    base = {0: 100.0, 1: 101.0, 2: 99.0}
    faster = paired_ratio({0: 120.0, 1: 121.0, 2: 119.0}, base)
    same = paired_ratio({0: 104.0, 1: 98.0, 2: 99.0}, base)
    assert say_ratio(faster, "16/4", "chain").startswith("16/4 is faster than chain: 1.20 times (1.20 to")
    assert say_ratio(same, "16/4", "chain").startswith(
        "no difference shown between 16/4 and chain: ratio 1.0"
    )
    once = paired_ratio({0: 120.0}, base)
    assert say_ratio(once, "16/4", "chain") == "16/4 is 1.20 times chain in a single round: no interval"
    assert say_ratio(None, "a", "b") == "a and b were never measured in the same round"
    slower = paired_ratio(base, {0: 120.0, 1: 121.0, 2: 119.0})
    assert "slower" in say_ratio(slower, "a", "b")


def test_the_stop_rule_looks_at_the_width():
    """Two per cent is reached by values that scatter little, never by one value."""
    assert narrow(mean_interval([100.0, 100.5, 99.5, 100.0]), 0.02)
    assert not narrow(mean_interval([100.0, 120.0, 80.0]), 0.02)
    assert not narrow(mean_interval([100.0]), 0.02)


def test_drift_is_told_from_scatter():
    """A baseline that loses 5 % a round drifts; one that scatters by 5 % does not."""
    falling = drift({n: 100 * 0.95**n * (1 + 0.002 * (-1) ** n) for n in range(6)})
    steady = drift({0: 100.0, 1: 105.0, 2: 98.0, 3: 103.0, 4: 100.0})
    assert (falling.shown, steady.shown) == (True, False)
    assert falling.words.startswith("the baseline drifted by -5.0% a round")
    assert steady.words.startswith("no drift of the baseline shown")
    assert drift({0: 1.0, 1: 2.0}) is None


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_two_rounds_give_every_arm_the_same_mean_position(count):
    """There and back: a steady drift charges all arms alike."""
    arms = [str(n) for n in range(count)]
    for even in (0, 2, 4):
        there, back = balanced(arms, even), balanced(arms, even + 1)
        assert {there.index(arm) + back.index(arm) for arm in arms} == {count - 1}
        assert there[-1] == back[0]


def test_no_arm_is_always_first():
    """Later pairs of rounds begin with other arms."""
    assert {balanced(["a", "b", "c"], 2 * n)[0] for n in range(3)} == {"a", "b", "c"}


def test_a_visit_scores_every_workload_alike():
    """A workload that was repeated more often does not weigh more."""
    mean, error = score(((1.0, 1.0, 1.0), (math.e**2, math.e**2)))
    assert (mean, error) == pytest.approx((1.0, 0.0))
    assert score(((1.0,), (2.0,)))[1] == math.inf


def test_a_visit_ends_when_it_is_known_well_enough():
    """Never before the least, never after the most, in between by its error."""
    assert needs_more(((1.0,),), least=2, most=4, error=0.1)
    assert not needs_more(((1.0, 1.01),), least=2, most=4, error=0.1)
    assert needs_more(((1.0, 2.0),), least=2, most=4, error=0.1)
    assert not needs_more(((1.0, 2.0, 1.0, 2.0),), least=2, most=4, error=0.1)


def test_groups_that_differ_are_no_uncertainty():
    """One workload ten times as fast as the other leaves the mean as sure as their own scatter."""
    alike = grouped_interval([[10.0, 10.1, 9.9], [100.0, 101.0, 99.0]])
    assert alike.value == pytest.approx(math.sqrt(1000), rel=0.001)
    assert alike.high / alike.low < 1.03
    assert not grouped_interval([[1.0], [2.0]]).known


def test_unpaired_ratios_hold_the_truth_as_often_as_they_say():
    """Over 400 pairs of sweeps the interval of after / before covers 1.1 in 92 to 98 % of them."""
    draw = random.Random(5)

    def values(level):
        return [[level * scale * math.exp(draw.gauss(0, 0.1)) for _ in range(4)] for scale in (1, 7)]

    covered = sum(1.1 in unpaired_ratio(values(1.1), values(1.0)) for _ in range(400))
    assert 0.92 <= covered / 400 <= 0.98
    assert unpaired_ratio([[2.0]], [[1.0]]).high == math.inf
