"""The smoke gate: which prompts are asked in which rounds, and what each answer must show.

`smoke.yaml` beside this file holds the prompts; the judges below turn what was seen into gates that name the
prompt, what was seen, and why it is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ddtree_ops.checks.codetask import Case, TaskResult
from ddtree_ops.checks.garble import garble_verdict
from ddtree_ops.checks.tokens import RescoreVerdict, WrongToken, accept_verdict, first_difference
from ddtree_ops.model.errors import UsageError
from ddtree_ops.model.generation import Generation
from ddtree_ops.model.release import Gate

SMOKE = Path(__file__).with_name("smoke.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokePrompt:
    """One user message; a coding task when it names a function and the cases that its code must pass."""

    id: str
    text: str
    function: str | None = None
    cases: tuple[Case, ...] = ()

    @property
    def messages(self) -> tuple[dict[str, str], ...]:
        return ({"role": "user", "content": self.text},)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeRequest:
    """One request of the gate."""

    id: str
    prompt: SmokePrompt
    temperature: float
    max_tokens: int
    group: str | None = None  # requests of a group are in flight together
    rescore: int = 0  # how many of its first tokens are compared with prefill
    repeats: str | None = None  # the request that asked the same before
    differs: bool = False  # its group's answers must not all be the same

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokePlan:
    requests: tuple[SmokeRequest, ...]

    @property
    def batches(self) -> tuple[tuple[SmokeRequest, ...], ...]:
        """The requests in order, those of one group together and any other alone."""
        keyed = groupby(self.requests, key=lambda request: request.group or request.id)
        return tuple(tuple(batch) for _, batch in keyed)


def smoke_plan(path: Path = SMOKE) -> SmokePlan:
    """The plan that a smoke file holds. UsageError names file and key of what is wrong in it."""
    try:
        data = YAML(typ="safe").load(path.read_text("utf-8"))
        prompts = {key: _prompt(key, value) for key, value in data["prompts"].items()}
        return SmokePlan(requests=tuple(_request(entry, prompts) for entry in data["rounds"]))
    except (YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"got {type(error).__name__} ({' '.join(str(error).split())}), expected prompts and rounds"
        raise UsageError("smoke", message, node=str(path)) from error


def _prompt(key: str, entry: Mapping[str, object]) -> SmokePrompt:
    context = entry.get("context")
    text = str(entry["text"])
    cases = entry.get("cases", [])
    if not isinstance(cases, list):
        raise TypeError(f"{key}.cases: got {cases!r}, expected a list")
    return SmokePrompt(
        id=key,
        text=f"{str(context).strip()}\n\n{text}" if context else text,
        function=str(entry["function"]) if "function" in entry else None,
        cases=tuple(Case(args=tuple(case["args"]), expected=case["expected"]) for case in cases),
    )


def _request(entry: Mapping[str, object], prompts: Mapping[str, SmokePrompt]) -> SmokeRequest:
    group, repeats = entry.get("group"), entry.get("repeats")
    return SmokeRequest(
        id=str(entry["id"]),
        prompt=prompts[str(entry["prompt"])],
        temperature=float(str(entry["temperature"])),
        max_tokens=int(str(entry["tokens"])),
        group=None if group is None else str(group),
        rescore=int(str(entry.get("rescore", 0))),
        repeats=None if repeats is None else str(repeats),
        differs=bool(entry.get("differs", False)),
    )


def text_gate(request: SmokeRequest, answer: Generation) -> Gate:
    """Whether the answer is a text at all."""
    verdict = garble_verdict(answer.text, request.prompt.text)
    if not verdict.garbled:
        evidence = f"{answer.completion_tokens} tokens, not garbled"
    else:
        begin = max(0, (verdict.span or (0, 0))[0] - 20)
        evidence = f"garbled: {'; '.join(verdict.reasons[:2])}; got {_quoted(answer.text[begin:])}"
    return _gate("text", request, passed=not verdict.garbled, evidence=evidence, seconds=answer.seconds)


def rescore_gate(request: SmokeRequest, verdict: RescoreVerdict, pieces: Mapping[int, str]) -> Gate:
    """Whether greedy output is what prefill chooses; `pieces` has the texts of token ids for the message."""
    if verdict.passed:
        ties = f", {len(verdict.ties)} of them near ties" if verdict.ties else ""
        evidence = f"{verdict.checked} tokens are the target's own choice{ties}"
    elif not verdict.wrong:
        evidence = "got no token to compare"
    else:
        first = verdict.wrong[0]
        evidence = (
            f"{len(verdict.wrong)} of {verdict.checked} tokens are not the target's choice; "
            f"the first is token {first.position + 1}: {_chosen(first, pieces)}"
        )
    return _gate("rescore", request, passed=verdict.passed, evidence=evidence)


def repeat_gate(request: SmokeRequest, before: Generation, answer: Generation) -> Gate:
    """Where two greedy answers to one prompt part. Reported, never failed: reduction order may part them."""
    at = first_difference(before.output_ids, answer.output_ids)
    same = f"the same {len(answer.output_ids)} tokens as {request.repeats}"
    evidence = same if at is None else f"other tokens than {request.repeats} from token {at + 1} on"
    return _gate("repeat", request, passed=True, evidence=evidence)


def difference_gate(requests: Sequence[SmokeRequest], answers: Sequence[Generation]) -> Gate:
    """Whether sampled answers to one prompt differ, as draws at this temperature do."""
    texts = {answer.text for answer in answers}
    request = requests[0]
    told = f"{len(texts)} different answers in {len(answers)} draws at temperature {request.temperature:g}"
    return _gate("difference", request, passed=len(texts) > 1, evidence=told)


def coding_gate(request: SmokeRequest, result: TaskResult) -> Gate:
    return _gate("coding", request, passed=result.passed, evidence=result.evidence)


def accept_gate(answers: Sequence[Generation], *, lifetime: float | None = None) -> Gate:
    """Whether speculation is worth its name over all answers; asked only where it is on."""
    verdict = accept_verdict(answers, lifetime=lifetime)
    return Gate(name="accept length", passed=verdict.passed, evidence=verdict.evidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that one run of the plan brought back, by request id."""

    answers: Mapping[str, Generation]
    rescored: Mapping[str, RescoreVerdict]
    tasks: Mapping[str, TaskResult]
    pieces: Mapping[int, str]  # texts of the token ids that a message may name
    lifetime_accept: float | None = None


def smoke_gates(plan: SmokePlan, seen: Seen, *, speculative: bool) -> tuple[Gate, ...]:
    """All verdicts in the order of the plan. A request without an answer fails its own gate."""
    gates: list[Gate] = []
    for request in plan.requests:
        answer = seen.answers.get(request.id)
        if answer is None:
            gates.append(_gate("text", request, passed=False, evidence="got no answer"))
            continue
        gates.append(text_gate(request, answer))
        if request.rescore:
            verdict = seen.rescored.get(request.id, RescoreVerdict(checked=0, wrong=()))
            gates.append(rescore_gate(request, verdict, seen.pieces))
        if request.repeats and (before := seen.answers.get(request.repeats)):
            gates.append(repeat_gate(request, before, answer))
        if request.prompt.function:
            missing = TaskResult(function=request.prompt.function, fault="it was not run")
            gates.append(coding_gate(request, seen.tasks.get(request.id, missing)))
    gates.extend(_difference_gates(plan, seen))
    if speculative:
        gates.append(accept_gate(list(seen.answers.values()), lifetime=seen.lifetime_accept))
    return tuple(gates)


def _difference_gates(plan: SmokePlan, seen: Seen) -> list[Gate]:
    gates = []
    for batch in plan.batches:
        drawn = [request for request in batch if request.differs and request.id in seen.answers]
        if len(drawn) > 1:
            gates.append(difference_gate(drawn, [seen.answers[request.id] for request in drawn]))
    return gates


def _gate(name: str, request: SmokeRequest, *, passed: bool, evidence: str, seconds: float = 0.0) -> Gate:
    return Gate(name=name, passed=passed, evidence=evidence, prompt=request.id, seconds=seconds)


def _chosen(token: WrongToken, pieces: Mapping[int, str]) -> str:
    return f"got {_piece(token.generated, pieces)}, prefill chooses {_piece(token.prefill, pieces)}"


def _piece(token: int, pieces: Mapping[int, str]) -> str:
    return f"{pieces[token]!r} (id {token})" if token in pieces else f"id {token}"


def _quoted(text: str, limit: int = 60) -> str:
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")
