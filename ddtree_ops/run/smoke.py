"""The smoke gate on one engine: prompts through the tunnel, and the checks' verdicts on what came back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from ddtree_ops.checks.codetask import TaskResult
from ddtree_ops.checks.smoke import Seen, SmokePlan, SmokeRequest, smoke_gates, smoke_plan
from ddtree_ops.checks.tokens import SECOND_OPINIONS, RescoreVerdict, rescore_prompts, rescore_verdict
from ddtree_ops.engine.chat_template import ChatTemplate
from ddtree_ops.engine.http import EngineClient, EngineDown, EngineError, Sampling
from ddtree_ops.engine.prompts import Prompter, Way
from ddtree_ops.model.generation import Generation
from ddtree_ops.model.profile import Profile
from ddtree_ops.model.release import Gate
from ddtree_ops.run.clock import Deadline
from ddtree_ops.run.context import NodeRun
from ddtree_ops.run.sandbox import run_task

BRIEF = ("poem", "quicksort")  # the pair that shows a wrong verify width soonest
MOST_DOUBTS = 4  # places of one answer that get second opinions; more differences are no ties
Show = Callable[[Gate], None]


def verdict(
    run: NodeRun, profile: Profile, timeout_s: float, *, brief: bool, show: Show | None = None
) -> Gate:
    """Runs the gate, or its first pair of prompts, and sums it up; `show` gets every single verdict."""
    plan = smoke_plan()
    if brief:
        plan = SmokePlan(requests=tuple(one for one in plan.requests if one.id in BRIEF))
    deadline = Deadline(run.world.clock, timeout_s)
    with run.engine(profile) as client:
        prompter = Prompter(client=client, template=ChatTemplate.from_files(dict(run.known().model_files)))
        session = Session(run=run, client=client, prompter=prompter, deadline=deadline)
        gates = session.gates(plan, speculative=profile.speculative)
    for gate in gates:
        if show is not None:
            show(gate)
    return replace(summed_up(gates, session.note), seconds=deadline.elapsed)


def summed_up(gates: Iterable[Gate], note: str = "") -> Gate:
    """One verdict over all: what failed first, or what was shown."""
    gates = tuple(gates)
    failed = [gate for gate in gates if not gate.passed]
    if failed:
        kinds = {gate.name: gate for gate in reversed(failed)}  # the first of each kind
        firsts = sorted(kinds.values(), key=failed.index)
        told = "; ".join(f"{gate.name} {gate.prompt or ''}".strip() + f": {gate.evidence}" for gate in firsts)
        evidence = f"{len(failed)} of {len(gates)} checks failed: {told}"
        return Gate(name="smoke", passed=False, evidence=evidence, prompt=failed[0].prompt)
    accept = next((gate.evidence for gate in gates if gate.name == "accept length"), "no speculation")
    told = f"{len(gates)} checks passed, {accept}"
    return Gate(name="smoke", passed=True, evidence=f"{told}; {note}" if note else told)


@dataclass(slots=True, kw_only=True)
class Session:
    """One run of the plan: what was asked, and what came back so far."""

    run: NodeRun
    client: EngineClient
    prompter: Prompter
    deadline: Deadline
    answers: dict[str, Generation] = field(default_factory=dict)
    ids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    note: str = ""

    def gates(self, plan: SmokePlan, *, speculative: bool) -> tuple[Gate, ...]:
        for request in plan.requests:
            if request.prompt.id not in self.ids:
                self.ids[request.prompt.id] = self._prompt_ids(request)
        self.client.flush_cache()  # after the ids: finding out how to make them asks a prompt
        for batch in plan.batches:
            self._ask(batch)
        rescored = {
            one.id: self.rescored(one) for one in plan.requests if one.rescore and one.id in self.answers
        }
        seen = Seen(
            answers=self.answers,
            rescored=rescored,
            tasks=self._tasks(plan),
            pieces=self.pieces(rescored),
        )
        return smoke_gates(plan, seen, speculative=speculative)

    def _prompt_ids(self, request: SmokeRequest) -> tuple[int, ...]:
        prompt = self.prompter.ids(request.prompt.text)
        if prompt.way is Way.PLAIN:
            self.note = f"prompts without a chat template: {prompt.note}"
        return prompt.ids

    def _ask(self, batch: tuple[SmokeRequest, ...]) -> None:
        """The requests of one batch, in flight together; one that fails has no answer."""
        self.deadline.check("smoke", f"{len(self.answers)} answers")
        self.run.world.screen.progress(self.run.name, ", ".join(request.id for request in batch))
        with ThreadPoolExecutor(len(batch)) as pool:
            for request, answer in zip(batch, pool.map(self._answer, batch), strict=True):
                if answer is not None:
                    self.answers[request.id] = answer

    def _answer(self, request: SmokeRequest) -> Generation | None:
        sampling = Sampling(max_tokens=request.max_tokens, temperature=request.temperature)
        try:
            return self.client.generate(self.ids[request.prompt.id], sampling)
        except EngineDown:
            raise  # nothing more will come
        except EngineError as error:
            self.run.world.screen.warn(self.run.name, f"{request.id}: {error}")
            return None

    def rescored(self, request: SmokeRequest) -> RescoreVerdict:
        """The answer's first tokens against plain prefill, from an empty cache: it keeps faults."""
        self.run.world.screen.progress(self.run.name, f"{request.id}: re-scoring through prefill")
        self.client.flush_cache()
        output = self.answers[request.id].output_ids
        prompts = rescore_prompts(self.ids[request.prompt.id], output, request.rescore)
        chosen = self.client.generate_batch(prompts, Sampling(max_tokens=1)) if prompts else ()
        prefill = [answer.output_ids[0] if answer.output_ids else -1 for answer in chosen]
        first = rescore_verdict(output, prefill)
        if not first.wrong or len(first.wrong) > MOST_DOUBTS:
            return first
        opinions = {token.position: self._opinions(prompts[token.position]) for token in first.wrong}
        return rescore_verdict(output, prefill, opinions)

    def _opinions(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        draws = self.client.generate_batch(
            [prompt] * SECOND_OPINIONS, Sampling(max_tokens=1, temperature=1.0)
        )
        return tuple(token for draw in draws for token in draw.output_ids[:1])

    def _tasks(self, plan: SmokePlan) -> dict[str, TaskResult]:
        found = {}
        for request in plan.requests:
            if request.prompt.function and request.id in self.answers:
                self.run.world.screen.progress(self.run.name, f"{request.id}: running its code in a sandbox")
                text = self.answers[request.id].text
                found[request.id] = run_task(text, request.prompt.function, request.prompt.cases)
        return found

    def pieces(self, rescored: Mapping[str, RescoreVerdict]) -> dict[int, str]:
        """Texts of the tokens that a message may name."""
        firsts = [verdict.wrong[0] for verdict in rescored.values() if verdict.wrong]
        tokens = {token for wrong in firsts for token in (wrong.generated, wrong.prefill) if token >= 0}
        return {token: self.client.detokenize((token,)) for token in sorted(tokens)}
