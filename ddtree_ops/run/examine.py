"""What one trial of an isolation asks: one request alone, the same after a prefix hit, several at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ddtree_ops.checks.smoke import SmokePlan, SmokePrompt, SmokeRequest, rescore_gate, smoke_plan, text_gate
from ddtree_ops.checks.tokens import accept_verdict, first_difference, rescore_prompts
from ddtree_ops.engine.chat_template import ChatTemplate
from ddtree_ops.engine.http import EngineError, Sampling
from ddtree_ops.engine.prompts import Prompter
from ddtree_ops.measure.isolate import Verdict
from ddtree_ops.model.generation import Generation
from ddtree_ops.model.profile import Profile
from ddtree_ops.model.release import Gate
from ddtree_ops.run.clock import Deadline
from ddtree_ops.run.context import NodeRun
from ddtree_ops.run.models import drafter_block
from ddtree_ops.run.smoke import Session

ALONE = ("poem", "quicksort")
TOGETHER = ("lighthouse", *ALONE, "tcp", "gcd", "flatten")
TOKENS = RESCORED = 48
POOR_ACCEPT = 1.7  # a drafter that fits commits more than this; a tree of few nodes can't, and is spared
POOR_SHARE = 0.2  # of the drafted tokens that an arm with a small budget could commit at best


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The verdicts on one deployed trial; `evidence` tells the first thing that was wrong."""

    single: Verdict
    batch: Verdict = Verdict.OK
    cached: Verdict = Verdict.OK
    accept_length: float | None = None
    evidence: str = ""


def examine(run: NodeRun, profile: Profile, timeout_s: float, *, block: int) -> Examined:
    """Asks the deployed engine; one that dies or hangs on the way has crashed, and that is a result too."""
    deadline = Deadline(run.world.clock, timeout_s)
    prompts = {request.prompt.id: request.prompt for request in smoke_plan().requests}
    try:
        with run.engine(profile) as client:
            template = ChatTemplate.from_files(dict(run.known().model_files))
            prompter = Prompter(client=client, template=template)
            session = Session(run=run, client=client, prompter=prompter, deadline=deadline)
            seen = _asked(session, prompts)
    except EngineError as error:
        run.node.observe()  # a lost link is no crash: this raises Unreachable
        return Examined(single=Verdict.CRASH, evidence=f"the engine failed at the prompts: {error.message}")
    return _judged(profile, block, seen, list(session.answers.values()))


def examined_gate(run: NodeRun, profile: Profile, timeout_s: float) -> Gate:
    """The same as one verdict, for playbooks that judge by it."""
    block = drafter_block(run, profile.drafter)
    seen = examine(run, profile, timeout_s, block=block)
    verdicts = {"alone": seen.single, "with others": seen.batch, "after a prefix hit": seen.cached}
    told = ", ".join(f"{check}: {verdict}" for check, verdict in verdicts.items())
    passed = all(verdict is Verdict.OK for verdict in verdicts.values())
    return Gate(name="examine", passed=passed, evidence=f"{told}; {seen.evidence}" if seen.evidence else told)


def _asked(session: Session, prompts: dict[str, SmokePrompt]) -> dict[str, tuple[Gate, ...]]:
    """Gates of each check; each starts from an empty cache, so that only the repeated prompt hits it."""
    poem, quicksort = (_request(prompts[id_]) for id_ in ALONE)
    again = replace(poem, id="poem again")
    several = tuple(replace(_request(prompts[id_]), id=f"{id_} with others") for id_ in TOGETHER)
    first = session.gates(SmokePlan(requests=(poem, again)), speculative=False)
    second = session.gates(SmokePlan(requests=(quicksort,)), speculative=False)
    batch = _at_once(session, several)
    single = (*_of(first, poem.id), *second, *_rescored(session, (poem, quicksort)))
    return {
        "single": single,
        "cached": (*_of(first, again.id), *_rescored(session, _differing(session, (again,)))),
        "batch": (*batch, *_rescored(session, _differing(session, several))),
    }


def _at_once(session: Session, requests: tuple[SmokeRequest, ...]) -> tuple[Gate, ...]:
    """Texts of requests that go out in one call, so that no slow link keeps them apart."""
    ids = [session.prompt_ids(request) for request in requests]
    session.client.flush_cache()
    answers = session.client.generate_batch(ids, Sampling(max_tokens=TOKENS))
    pairs = tuple(zip(requests, answers, strict=True))
    session.answers.update({request.id: answer for request, answer in pairs})
    return tuple(text_gate(request, answer) for request, answer in pairs)


def _differing(session: Session, requests: Iterable[SmokeRequest]) -> Iterator[SmokeRequest]:
    """The requests whose answer is not what the same prompt got alone, which has been re-scored by then."""
    for request in requests:
        answer, alone = session.answers.get(request.id), session.answers.get(request.prompt.id)
        if (
            answer is None
            or alone is None
            or first_difference(answer.output_ids, alone.output_ids) is not None
        ):
            yield request


def _rescored(session: Session, requests: Iterable[SmokeRequest]) -> Iterator[Gate]:
    for request in requests:
        if request.id in session.answers:
            verdict = session.rescored(replace(request, rescore=RESCORED))
            if verdict.passed or not _prefill_agrees(session, request):
                yield rescore_gate(request, verdict, session.pieces({request.id: verdict}))


def _prefill_agrees(session: Session, request: SmokeRequest) -> bool:
    """Re-scores token by token, each from an empty cache: a broken cache spoils prefill in a batch too."""
    output = session.answers[request.id].output_ids
    prompts = rescore_prompts(session.ids[request.prompt.id], output, RESCORED)
    for prompt, token in zip(prompts, output, strict=False):
        session.client.flush_cache()
        if session.client.generate(prompt, Sampling(max_tokens=1)).output_ids[:1] != (token,):
            return False
    return True


def _request(prompt: SmokePrompt) -> SmokeRequest:
    return SmokeRequest(id=prompt.id, prompt=prompt, temperature=0.0, max_tokens=TOKENS)


def _of(gates: Iterable[Gate], id_: str) -> Iterable[Gate]:
    return (gate for gate in gates if gate.prompt == id_)


def _judged(
    profile: Profile, block: int, seen: dict[str, tuple[Gate, ...]], answers: list[Generation]
) -> Examined:
    failed = {check: [gate for gate in gates if not gate.passed] for check, gates in seen.items()}
    verdicts = {check: Verdict.GARBLED if gates else Verdict.OK for check, gates in failed.items()}
    accept = accept_verdict(answers).token_weighted if profile.speculative else None
    first = next((gate for gates in failed.values() for gate in gates), None)
    evidence = f"{first.prompt}: {first.evidence}" if first else ""
    if verdicts["single"] is Verdict.OK and accept is not None and accept < least_accept(profile, block):
        verdicts["single"] = Verdict.POOR
        evidence = f"accept length {accept:.2f} (token-weighted), expected {least_accept(profile, block):.2f}"
    return Examined(
        single=verdicts["single"],
        batch=verdicts["batch"],
        cached=verdicts["cached"],
        accept_length=accept,
        evidence=evidence,
    )


def least_accept(profile: Profile, block: int) -> float:
    """The accept length that a drafter which fits its target reaches with this profile."""
    deepest = block - 1 if profile.budget is None else min(profile.budget, block - 1)
    return min(POOR_ACCEPT, 1 + POOR_SHARE * deepest)
