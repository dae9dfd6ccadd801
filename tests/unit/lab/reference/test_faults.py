"""Planted faults break what their names say, and nothing else."""

from __future__ import annotations

import pytest

from ddtree_ops.lab.reference.faults import Faults

from .conftest import PATCHED, SMOKE, Alone, Bench, MakeBench, accept_length, prompt_text

PROMPTS = [prompt_text(name) for name in SMOKE if name != "summary"]


TOKENS = 80


def wrong(bench: Bench, alone: Alone, *, together: bool = False) -> int:
    """How many of the prompts are answered otherwise than by the target alone."""
    bench.flush()
    if together:
        outputs = bench.outputs(PROMPTS, tokens=TOKENS)
    else:
        outputs = [bench.outputs([prompt], tokens=TOKENS)[0] for prompt in PROMPTS]
    return sum(output != alone(prompt, TOKENS) for output, prompt in zip(outputs, PROMPTS, strict=True))


def test_graph_width_breaks_graphs_and_spares_eager(bench: MakeBench, alone: Alone) -> None:
    assert wrong(bench(PATCHED, budget=16, topk=4, faults=["graph-width"]), alone) >= 4
    assert wrong(bench(PATCHED, budget=16, topk=4, faults=["graph-width"], graph=False), alone) == 0
    assert wrong(bench(PATCHED, budget=7, topk=4, faults=["graph-width"]), alone) == 0


def test_topk_breaks_branches_and_spares_chains(bench: MakeBench, alone: Alone) -> None:
    assert wrong(bench(PATCHED, budget=16, topk=4, faults=["topk"]), alone) >= 2
    assert wrong(bench(PATCHED, budget=16, topk=1, faults=["topk"]), alone) == 0


def test_batch_breaks_requests_that_run_together(bench: MakeBench, alone: Alone) -> None:
    broken = bench(PATCHED, budget=16, topk=4, faults=["batch"])

    assert wrong(broken, alone) == 0
    assert wrong(broken, alone, together=True) >= 4


def test_prefix_cache_breaks_answers_that_reuse_a_prefix(bench: MakeBench, alone: Alone) -> None:
    broken = bench(PATCHED, budget=16, topk=4, faults=["prefix-cache"])
    first, again = broken.outputs(PROMPTS[:1]), broken.outputs(PROMPTS[:1])
    broken.flush()
    flushed = broken.outputs(PROMPTS[:1])

    assert [output == [alone(PROMPTS[0], 120)] for output in (first, again, flushed)] == [True, False, True]


@pytest.mark.parametrize(
    ("fault", "most"), [("wrong-drafter", 1.2), ("draft-quantised", 1.5), ("block-size", 1.5)]
)
@pytest.mark.parametrize("budget", [None, 16])
def test_a_bad_drafter_costs_acceptance_and_spares_the_output(
    bench: MakeBench, alone: Alone, fault: str, most: float, budget: int | None
) -> None:
    broken = bench(PATCHED, budget=budget, topk=budget and 4, faults=[fault])
    requests = broken.ask(PROMPTS, tokens=TOKENS)

    assert [request.output for request in requests] == [alone(prompt, TOKENS) for prompt in PROMPTS]
    assert accept_length(requests) < most


def test_faults_are_read_from_a_comma_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFERENCE_ENGINE_FAULT", "slow-load=2.5, die-after=3,topk,batch")
    planted = Faults.planted()

    assert (planted.slow_load, planted.die_after, planted.names) == (2.5, 3, {"topk", "batch"})


@pytest.mark.parametrize("text", ["nonsense", "topk=3", "slow-load"])
def test_an_unknown_fault_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("REFERENCE_ENGINE_FAULT", text)
    with pytest.raises(SystemExit, match=f"got '{text}', expected one of"):
        Faults.planted()
