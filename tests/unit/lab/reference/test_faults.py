"""Planted faults break what their names say, and nothing else."""

from __future__ import annotations

import pytest

from ddtree_ops.lab.reference.faults import Faults

from .conftest import PATCHED, SMOKE, Bench, MakeBench, accept_length, prompt_text

PROMPTS = [prompt_text(name) for name in SMOKE if name != "summary"]


def wrong(bench: Bench, alone: list[list[int]], *, together: bool = False) -> int:
    """How many of the prompts are answered otherwise than by the target alone."""
    bench.flush()
    if together:
        outputs = bench.outputs(PROMPTS)
    else:
        outputs = [bench.outputs([prompt])[0] for prompt in PROMPTS]
    return sum(output != own for output, own in zip(outputs, alone, strict=True))


@pytest.fixture
def alone(bench: MakeBench) -> list[list[int]]:
    return bench().outputs(PROMPTS)


def test_graph_width_breaks_graphs_and_spares_eager(bench: MakeBench, alone: list[list[int]]) -> None:
    assert wrong(bench(PATCHED, budget=16, topk=4, faults=["graph-width"]), alone) >= 5
    assert wrong(bench(PATCHED, budget=16, topk=4, faults=["graph-width"], graph=False), alone) == 0
    assert wrong(bench(PATCHED, budget=7, topk=4, faults=["graph-width"]), alone) == 0


def test_topk_breaks_branches_and_spares_chains(bench: MakeBench, alone: list[list[int]]) -> None:
    assert wrong(bench(PATCHED, budget=16, topk=4, faults=["topk"]), alone) >= 5
    assert wrong(bench(PATCHED, budget=16, topk=1, faults=["topk"]), alone) == 0


def test_batch_breaks_requests_that_run_together(bench: MakeBench, alone: list[list[int]]) -> None:
    broken = bench(PATCHED, budget=16, topk=4, faults=["batch"])

    assert wrong(broken, alone) == 0
    assert wrong(broken, alone, together=True) >= 5


def test_prefix_cache_breaks_answers_that_reuse_a_prefix(bench: MakeBench, alone: list[list[int]]) -> None:
    broken = bench(PATCHED, budget=16, topk=4, faults=["prefix-cache"])
    first, again = broken.outputs(PROMPTS[:1]), broken.outputs(PROMPTS[:1])

    assert (first == alone[:1], again == alone[:1]) == (True, False)
    broken.flush()
    assert broken.outputs(PROMPTS[:1]) == alone[:1]


@pytest.mark.parametrize(
    ("fault", "most"), [("wrong-drafter", 1.2), ("draft-quantised", 1.5), ("block-size", 1.8)]
)
@pytest.mark.parametrize("budget", [None, 16])
def test_a_bad_drafter_costs_acceptance_and_spares_the_output(
    bench: MakeBench, alone: list[list[int]], fault: str, most: float, budget: int | None
) -> None:
    broken = bench(PATCHED, budget=budget, topk=budget and 4, faults=[fault])
    requests = broken.ask(PROMPTS)

    assert [request.output for request in requests] == alone
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
