"""Token ids and step counts become verdicts that a message can be made of."""

from __future__ import annotations

import pytest

from ddtree_ops.checks.tokens import (
    SECOND_OPINIONS,
    RescoreVerdict,
    WrongToken,
    accept_verdict,
    first_difference,
    rescore_prompts,
    rescore_verdict,
)
from ddtree_ops.model.generation import Generation


def generation(tokens: int, steps: int | None) -> Generation:
    return Generation(
        text="x", output_ids=(1,) * tokens, prompt_tokens=3, completion_tokens=tokens, verify_steps=steps
    )


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([], [], None),
        ([1, 2, 3], [1, 9, 3], 1),
        ([1, 2], [1, 2, 3], 2),
        ([1, 2, 3], [1, 2], 2),
        ([], [1], 0),
    ],
)
def test_the_first_difference_counts_a_missing_token(
    left: list[int], right: list[int], expected: int | None
) -> None:
    assert first_difference(left, right) == expected


def test_each_output_token_is_asked_for_after_the_ones_before_it() -> None:
    assert rescore_prompts((1, 2), (7, 8, 9), limit=2) == ((1, 2), (1, 2, 7))
    assert rescore_prompts((1, 2), (7,), limit=48) == ((1, 2),)
    assert rescore_prompts((1, 2), (), limit=48) == ()


def test_output_that_prefill_would_have_chosen_passes() -> None:
    assert rescore_verdict((7, 8, 9), (7, 8)) == RescoreVerdict(checked=2, wrong=())


def test_the_first_wrong_token_is_named() -> None:
    verdict = rescore_verdict((7, 8, 9, 4), (7, 5, 9, 6))
    assert not verdict.passed
    assert verdict.wrong[0] == WrongToken(position=1, generated=8, prefill=5)


def test_nothing_compared_is_nothing_shown() -> None:
    assert not rescore_verdict((7, 8), ()).passed


@pytest.mark.parametrize(
    ("generated", "prefill", "tie"),
    [(20, 25, True), (25, 20, True), (3, 4, True), (0, 40, False), (8, 30, False), (0, 0, False)],
)
def test_a_token_drawn_about_as_often_as_prefills_choice_is_a_tie(
    generated: int, prefill: int, tie: bool
) -> None:
    others = SECOND_OPINIONS - generated - prefill
    draws = (8,) * generated + (5,) * prefill + (99,) * others
    verdict = rescore_verdict((7, 8), (7, 5), {1: draws})
    assert (verdict.passed, len(verdict.ties)) == (tie, int(tie))


def test_an_opinion_on_one_place_excuses_no_other() -> None:
    verdict = rescore_verdict((7, 8, 9), (1, 5, 9), {1: (8, 5)})
    assert verdict.wrong == (WrongToken(position=0, generated=7, prefill=1),)


def test_accept_length_is_told_by_each_estimator() -> None:
    verdict = accept_verdict([generation(60, 10), generation(10, 5)], lifetime=4.0)
    assert verdict.passed
    assert (verdict.token_weighted, verdict.request_weighted, verdict.lifetime) == (70 / 15, 4.0, 4.0)
    assert verdict.evidence == "accept length 4.67 (token-weighted; 4.00 request-weighted, 2 requests)"


@pytest.mark.parametrize(
    ("answers", "lifetime", "evidence"),
    [
        (
            [generation(64, 64), generation(32, 32)],
            None,
            (
                "accept length 1.00 (token-weighted; 1.00 request-weighted, 2 requests), "
                "expected more than 1.05: no drafted token is accepted"
            ),
        ),
        (
            [generation(103, 100)],
            None,
            "accept length 1.03 (token-weighted; 1.03 request-weighted, 1 requests), expected more than 1.05",
        ),
        (
            [generation(64, None)],
            None,
            "got no accept length from the engine, expected more than 1.05: it does not speculate",
        ),
        ([], 1.0, "accept length 1.00 (lifetime), expected more than 1.05: no drafted token is accepted"),
    ],
)
def test_speculation_that_accepts_nothing_fails_in_words(
    answers: list[Generation], lifetime: float | None, evidence: str
) -> None:
    verdict = accept_verdict(answers, lifetime=lifetime)
    assert (verdict.passed, verdict.evidence) == (False, evidence)


def test_an_engine_that_reports_no_steps_is_judged_by_its_lifetime_mean() -> None:
    verdict = accept_verdict([generation(64, None)], lifetime=3.2)
    assert (verdict.passed, verdict.token_weighted, verdict.evidence) == (
        True,
        None,
        "accept length 3.20 (lifetime)",
    )
