"""The smoke file becomes a plan, and what its requests brought back becomes gates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddtree_ops.checks.codetask import Case, CaseResult, TaskResult
from ddtree_ops.checks.smoke import Seen, SmokePlan, SmokeRequest, smoke_gates, smoke_plan
from ddtree_ops.checks.tokens import RescoreVerdict, WrongToken
from ddtree_ops.model.errors import UsageError
from ddtree_ops.model.generation import Generation
from ddtree_ops.model.release import Gate

PLAN = smoke_plan()
BY_ID = {request.id: request for request in PLAN.requests}
SOUND = "The sea is calm tonight, and the lamp is lit. "
LONG_ENOUGH = 16


def answer(text: str, ids: tuple[int, ...] = (1, 2, 3), steps: int | None = 1) -> Generation:
    return Generation(
        text=text, output_ids=ids, prompt_tokens=9, completion_tokens=len(ids), verify_steps=steps
    )


def seen(**changes: object) -> Seen:
    """A run of the whole plan in which everything is as it should be."""
    answers = {request.id: answer(SOUND + str(number)) for number, request in enumerate(PLAN.requests)}
    tasks = {
        request.id: TaskResult(
            function=request.prompt.function,
            results=tuple(CaseResult(case=case, got=case.expected) for case in request.prompt.cases),
        )
        for request in PLAN.requests
        if request.prompt.function
    }
    rescored = {
        request.id: RescoreVerdict(checked=3, wrong=()) for request in PLAN.requests if request.rescore
    }
    whole = Seen(answers=answers, rescored=rescored, tasks=tasks, pieces={})
    return replace(whole, **changes)  # type: ignore[arg-type]


def failed(run: Seen, *, speculative: bool = True) -> list[Gate]:
    return [gate for gate in smoke_gates(PLAN, run, speculative=speculative) if not gate.passed]


def test_the_plan_asks_the_telling_pair_first_and_alone() -> None:
    assert [[one.id for one in batch] for batch in PLAN.batches[:2]] == [["poem"], ["quicksort"]]
    assert all(one.greedy and one.rescore >= LONG_ENOUGH for one in PLAN.requests[:2])


def test_the_plan_has_every_kind_of_round() -> None:
    temperatures = {request.temperature for request in PLAN.requests}
    together = next(batch for batch in PLAN.batches if batch[0].group == "together")
    coding = [request for request in PLAN.requests if request.prompt.function]
    assert temperatures == {0, 0.6, 0.8, 1.0}
    assert {"poem", "quicksort"} <= {request.prompt.id for request in together}
    assert len(coding) == 5
    assert all(len(request.prompt.cases) >= 5 for request in coding)
    assert len(BY_ID["summary"].prompt.text.split()) > 600
    assert BY_ID["summary"].prompt.text.endswith("\n\nSummarise the text above in two sentences.")


def test_every_request_has_an_id_of_its_own_and_repeats_one_before_it() -> None:
    assert len(BY_ID) == len(PLAN.requests)
    order = list(BY_ID)
    for request in PLAN.requests:
        if request.repeats:
            earlier = BY_ID[request.repeats]
            assert order.index(request.repeats) < order.index(request.id)
            assert (earlier.prompt, earlier.temperature) == (request.prompt, request.temperature)


def test_a_sound_run_passes_every_gate() -> None:
    run = seen(
        answers={
            key: replace(value, completion_tokens=30, verify_steps=10)
            for key, value in seen().answers.items()
        }
    )
    gates = smoke_gates(PLAN, run, speculative=True)
    assert [gate for gate in gates if not gate.passed] == []
    assert {gate.name for gate in gates} == {
        "text",
        "rescore",
        "repeat",
        "difference",
        "coding",
        "accept length",
    }
    assert gates[-1].evidence.startswith("accept length 3.00 (token-weighted")


def test_a_garbled_answer_names_its_prompt_what_was_seen_and_why() -> None:
    answers = {**seen().answers, "poem": answer("The.r!!!!!!!!!!")}
    (gate, *_) = failed(seen(answers=answers))
    assert (gate.name, gate.prompt) == ("text", "poem")
    assert gate.evidence == (
        "garbled: '!' 10 times in a row; a stray letter behind a full stop: 'The.r'; got 'The.r!!!!!!!!!!'"
    )


def test_a_wrong_token_is_named_with_its_place_and_texts() -> None:
    wrong = RescoreVerdict(checked=48, wrong=(WrongToken(position=4, generated=912, prefill=33),) * 2)
    run = seen(rescored={**seen().rescored, "poem": wrong}, pieces={912: "user", 33: " its"})
    gate = next(gate for gate in failed(run) if gate.name == "rescore")
    assert gate.prompt == "poem"
    assert gate.evidence == (
        "2 of 48 tokens are not the target's choice; the first is token 5: "
        "got 'user' (id 912), prefill chooses ' its' (id 33)"
    )


def test_near_ties_are_told_and_pass() -> None:
    tied = RescoreVerdict(checked=48, wrong=(), ties=(WrongToken(position=4, generated=1, prefill=2),))
    run = seen(rescored={**seen().rescored, "poem": tied})
    gate = next(
        g for g in smoke_gates(PLAN, run, speculative=False) if (g.name, g.prompt) == ("rescore", "poem")
    )
    assert (gate.passed, gate.evidence) == (
        True,
        "48 tokens are the target's own choice, 1 of them near ties",
    )


def test_two_greedy_runs_that_part_are_told_with_the_place_and_not_failed() -> None:
    answers = {**seen().answers, "poem-together": answer(SOUND, ids=(1, 9, 3))}
    gates = smoke_gates(PLAN, seen(answers=answers), speculative=False)
    told = {gate.prompt: gate for gate in gates if gate.name == "repeat"}
    assert told["poem-together"].passed
    assert told["poem-together"].evidence == "other tokens than poem from token 2 on"
    assert told["quicksort-together"].evidence == "the same 3 tokens as quicksort"


def test_draws_that_are_all_the_same_fail() -> None:
    drawn = [request.id for request in PLAN.requests if request.differs]
    run = seen(answers={**seen().answers, **dict.fromkeys(drawn, answer(SOUND))})
    (gate,) = (gate for gate in failed(run, speculative=False))
    assert (gate.name, gate.evidence) == ("difference", "1 different answers in 3 draws at temperature 0.8")


def test_code_that_fails_a_case_shows_the_call() -> None:
    result = TaskResult(
        function="gcd",
        results=(
            CaseResult(case=Case(args=(12, 18), expected=6), got=6),
            CaseResult(case=Case(args=(0, 9), expected=9), error="raises ZeroDivisionError: modulo by zero"),
        ),
    )
    gate = next(g for g in failed(seen(tasks={**seen().tasks, "gcd": result})) if g.name == "coding")
    assert (
        gate.evidence
        == "gcd: 1 of 2 cases; gcd(0, 9): got raises ZeroDivisionError: modulo by zero, expected 9"
    )


def test_what_did_not_come_back_fails() -> None:
    answers = {key: value for key, value in seen().answers.items() if key != "tcp-together"}
    gates = failed(seen(answers=answers, tasks={}, rescored={}), speculative=False)
    told = {(gate.name, gate.prompt, gate.evidence) for gate in gates}
    assert ("text", "tcp-together", "got no answer") in told
    assert ("rescore", "poem", "got no token to compare") in told
    assert ("coding", "gcd", "gcd: it was not run") in told


def test_accept_length_is_asked_for_where_speculation_is_on_alone() -> None:
    assert [
        gate.name
        for gate in failed(
            seen(
                answers={
                    key: replace(value, completion_tokens=3, verify_steps=3)
                    for key, value in seen().answers.items()
                }
            )
        )
    ] == ["accept length"]
    names = {gate.name for gate in smoke_gates(PLAN, seen(), speculative=False)}
    assert "accept length" not in names


@pytest.mark.parametrize(
    "text",
    [
        "prompts: {a: {text: x}}\nrounds: [{id: r, prompt: b, temperature: 0, tokens: 8}]",
        "prompts: {a: {text: x}}\nrounds: [{id: r, prompt: a, temperature: warm, tokens: 8}]",
        "prompts: {a: {text: x, cases: 3}}\nrounds: []",
        "prompts: [",
        "- a list",
    ],
)
def test_a_smoke_file_that_makes_no_sense_is_a_usage_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "smoke.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match="expected prompts and rounds") as caught:
        smoke_plan(path)
    assert caught.value.node == str(path)


def test_a_plan_of_its_own_is_batched_by_its_groups(tmp_path: Path) -> None:
    path = tmp_path / "smoke.yaml"
    rounds = "".join(f"  - {{id: {i}, prompt: a, temperature: 0, tokens: 8{g}}}\n" for i, g in
                     (("x", ""), ("y", ", group: g"), ("z", ", group: g"), ("w", "")))  # fmt: skip
    path.write_text(f"prompts: {{a: {{text: hello}}}}\nrounds:\n{rounds}")
    plan: SmokePlan = smoke_plan(path)
    batches = [[request.id for request in batch] for batch in plan.batches]
    first: SmokeRequest = plan.requests[0]
    assert (batches, first.prompt.messages) == (
        [["x"], ["y", "z"], ["w"]],
        ({"role": "user", "content": "hello"},),
    )
