"""Verdicts on token ids and on how many of them a verify step commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddtree_ops.model.generation import Generation

Ids = Sequence[int]

LEAST_ACCEPT_LENGTH = 1.05  # 1.0: no drafted token was ever accepted; useful drafters are far above
# Draws at a doubtful place: as many as engines with a drafter run at once by default.
SECOND_OPINIONS = 48
TIE = 0.6  # how often the doubtful token must be drawn for each time that prefill's own choice is


def first_difference(left: Ids, right: Ids) -> int | None:
    """The first position where two outputs differ, a missing token counting too; None when they are equal."""
    for at, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return at
    return None if len(left) == len(right) else min(len(left), len(right))


def rescore_prompts(prompt: Ids, output: Ids, limit: int) -> tuple[tuple[int, ...], ...]:
    """What to prefill so that one greedy token after each is the target's own choice for each output token.

    Entry i is the prompt and the first i output tokens; at most `limit` entries. Flush the prefix cache
    first: KV that a broken verify pass wrote stays in it and would repeat the fault.
    """
    return tuple((*prompt, *output[:at]) for at in range(min(limit, len(output))))


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongToken:
    position: int  # in the output, from 0
    generated: int
    prefill: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoreVerdict:
    """How greedy output compares with the target's own argmax, which never saw the tree's mask."""

    checked: int
    wrong: tuple[WrongToken, ...]
    ties: tuple[WrongToken, ...] = ()  # not the argmax, but near enough to it to be drawn

    @property
    def passed(self) -> bool:
        return self.checked > 0 and not self.wrong


def rescore_verdict(
    output: Ids, prefill: Ids, second_opinions: Mapping[int, Ids] | None = None
) -> RescoreVerdict:
    """Compares output token i with prefill token i, the greedy answer to `rescore_prompts` entry i.

    Prefill and verify round differently, so at a near tie a sound engine may choose either. `second_opinions`
    gives, for positions that differ, tokens drawn there at temperature 1: where both tokens are drawn about
    equally often it is a tie, and no fault. A token from a wrong mask is drawn seldom or never.
    """
    drawn = second_opinions or {}
    differing = [
        WrongToken(position=at, generated=generated, prefill=wanted)
        for at, (generated, wanted) in enumerate(zip(output, prefill, strict=False))
        if generated != wanted
    ]
    ties = tuple(token for token in differing if _tied(token, drawn.get(token.position, ())))
    wrong = tuple(token for token in differing if token not in ties)
    return RescoreVerdict(checked=min(len(output), len(prefill)), wrong=wrong, ties=ties)


def _tied(token: WrongToken, drawn: Ids) -> bool:
    """A tie of rounding differs by a few percent in probability; 48 draws tell 1 : 1 from 1 : 3."""
    generated, prefill = drawn.count(token.generated), drawn.count(token.prefill)
    return generated > 0 and generated >= TIE * prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptVerdict:
    """Accept length by each of its estimators, all with the bonus token; None where the engine gives none."""

    passed: bool
    token_weighted: float | None  # all completion tokens over all verify steps
    request_weighted: float | None  # mean of each request's completion_tokens / spec_verify_ct
    lifetime: float | None  # the engine's own mean since its start or flush
    evidence: str


def accept_verdict(
    generations: Sequence[Generation], *, lifetime: float | None = None, least: float = LEAST_ACCEPT_LENGTH
) -> AcceptVerdict:
    """Judges these answers' token-weighted accept length, or the lifetime mean where they report none."""
    told = [answer for answer in generations if answer.verify_steps]
    steps = sum(answer.verify_steps or 0 for answer in told)
    each = [length for answer in told if (length := answer.accept_length) is not None]
    token_weighted = sum(answer.completion_tokens for answer in told) / steps if steps else None
    request_weighted = sum(each) / len(each) if each else None
    judged, name = (token_weighted, "token-weighted") if steps else (lifetime, "lifetime")
    return AcceptVerdict(
        passed=judged is not None and judged > least,
        token_weighted=token_weighted,
        request_weighted=request_weighted,
        lifetime=lifetime,
        evidence=_accept_evidence(judged, name, request_weighted, len(told), least),
    )


def _accept_evidence(
    judged: float | None, name: str, request_weighted: float | None, requests: int, least: float
) -> str:
    if judged is None:
        return f"got no accept length from the engine, expected more than {least}: it does not speculate"
    told = f"accept length {judged:.2f} ({name}"
    if request_weighted is not None:
        told += f"; {request_weighted:.2f} request-weighted, {requests} requests"
    if judged > least:
        return f"{told})"
    stuck = ": no drafted token is accepted" if judged <= 1.005 else ""
    return f"{told}), expected more than {least}{stuck}"
