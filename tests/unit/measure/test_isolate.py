"""Isolation against simulated engines with one planted fault each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddtree_ops.measure.isolate import Conclusion, Setup, Trial, Verdict, next_trial, table

BLOCK = 8
STOCK = Setup(budget=16, topk=4, graphs=True)
PATCHED = replace(STOCK, patches=frozenset({"verify-width", "graph-width"}))
OK, GARBLED, POOR, CRASH = Verdict.OK, Verdict.GARBLED, Verdict.POOR, Verdict.CRASH


def wide(setup):
    return setup.tree and setup.budget + 1 > BLOCK


# What a real engine with the fault does in a setup: one request, several, one after a prefix hit.
ENGINES = {
    "patch absent": lambda s: (GARBLED if wide(s) and "verify-width" not in s.patches else OK, OK, OK),
    "graph width": lambda s: (GARBLED if wide(s) and s.graphs else OK, OK, OK),
    "wrong drafter": lambda s: (POOR if s.drafter else OK, OK, OK),
    "draft quantised": lambda s: (POOR if s.drafter and not s.plain_draft else OK, OK, OK),
    "block size": lambda s: (POOR if s.drafter and not s.own_block else OK, OK, OK),
    "top-k": lambda s: (GARBLED if s.tree and s.topk != 1 else OK, OK, OK),
    "batch": lambda s: (OK, GARBLED if s.drafter else OK, OK),
    "prefix cache": lambda s: (OK, OK, GARBLED if s.cache else OK),
}
RESTARTS = {
    "patch absent": 4, "graph width": 4, "wrong drafter": 3, "draft quantised": 2,
    "block size": 3, "top-k": 4, "batch": 2, "prefix cache": 1,
}  # fmt: skip


def isolate(failing, engine):
    """All trials of an engine, and the conclusion."""
    trials = []
    while isinstance(step := next_trial(failing, trials, block=BLOCK), Setup):
        assert step not in {trial.setup for trial in trials}
        single, batch, cached = engine(step)
        trials.append(Trial(setup=step, single=single, batch=batch, cached=cached))
    return trials, step


@pytest.mark.parametrize("fault", ENGINES)
def test_each_planted_fault_is_named_with_few_restarts(fault):
    """The eight faults are told from one another within the restarts of the table."""
    failing = STOCK if fault == "patch absent" else PATCHED
    trials, conclusion = isolate(failing, ENGINES[fault])
    assert conclusion.faults == (fault,)
    assert conclusion.restarts == len(trials) <= RESTARTS[fault]


@pytest.mark.parametrize("budget", [8, 16, 64])
@pytest.mark.parametrize("topk", [1, 4])
@pytest.mark.parametrize("graphs", [True, False])
def test_a_missing_patch_is_named_from_any_failing_profile(budget, topk, graphs):
    """Whatever the profile's other factors are, the padding path is found in at most four restarts."""
    failing = Setup(budget=budget, topk=topk, graphs=graphs)
    _, conclusion = isolate(failing, ENGINES["patch absent"])
    assert conclusion.faults == ("patch absent",)
    assert conclusion.restarts <= 4


def test_the_sentence_has_evidence_reason_and_cure():
    """What garbled, what did not, which width stands where another is needed, and what to do."""
    _, conclusion = isolate(Setup(budget=16, topk=1, graphs=True), ENGINES["patch absent"])
    assert conclusion.sentence == (
        "padding path: garbled: 16/1, 16/1 eager; right: 7/1, 16/1 +graph-width +verify-width; "
        "width 8 is used where 17 is needed: apply `verify-width`, and `graph-width` where graphs are on"
    )


OTHERS = {
    "graphs": lambda s: GARBLED if s.drafter and s.graphs else OK,
    "padding": lambda s: GARBLED if wide(s) else OK,
    "tree": lambda s: GARBLED if s.tree else OK,
    "speculation": lambda s: GARBLED if s.drafter else OK,
    "target": lambda s: GARBLED,
}


@pytest.mark.parametrize("fault", OTHERS)
@pytest.mark.parametrize("failing", [STOCK, PATCHED], ids=["stock", "patched"])
def test_what_is_not_the_trees_fault_is_told_from_it(fault, failing):
    """Faults of graphs, of the target or of speculation as such are named as that."""
    _, conclusion = isolate(failing, lambda setup: (OTHERS[fault](setup), OK, OK))
    assert conclusion.faults == (fault,)
    assert conclusion.restarts <= 5


def test_both_widths_missing_is_a_missing_patch():
    """Stock sources err twice; the cure names both patch sets."""

    def engine(s):
        wrong = wide(s) and not ("verify-width" in s.patches and ("graph-width" in s.patches or not s.graphs))
        return GARBLED if wrong else OK, OK, OK

    _, conclusion = isolate(STOCK, engine)
    assert conclusion.faults == ("patch absent",)
    assert "`verify-width`, and `graph-width` where graphs are on" in conclusion.sentence


def test_a_crash_counts_and_is_shown():
    """An engine that dies for a width is isolated like one that garbles."""
    _, conclusion = isolate(PATCHED, lambda s: (CRASH if wide(s) and s.graphs else OK, OK, OK))
    assert conclusion.faults == ("graph width",)
    assert "(crash)" in conclusion.sentence


def test_a_prefix_fault_that_also_shows_in_batches_is_a_prefix_fault():
    """Requests of a batch share the template's prefix: both checks fail, the cache is named."""
    _, conclusion = isolate(PATCHED, lambda s: (OK, *([GARBLED] * 2 if s.cache else [OK] * 2)))
    assert conclusion.faults == ("prefix cache",)


def test_a_fault_that_does_not_show_again_is_not_explained():
    """A failing profile that passes its first trial ends the isolation in words."""
    trials, conclusion = isolate(STOCK, lambda s: (OK, OK, OK))
    assert (len(trials), conclusion.faults) == (1, ())
    assert conclusion.sentence == "not reproduced: right: 16/4"


def test_contradicting_results_are_not_forced_into_a_fault():
    """Two faults at once that no single one explains: said so, with the evidence."""
    _, conclusion = isolate(PATCHED, lambda s: (GARBLED if s.budget == 16 else POOR, OK, OK))
    assert conclusion.faults == ()
    assert conclusion.sentence.startswith("no single fault explains the results: garbled: 16/4")


def test_every_next_step_depends_on_results_alone():
    """The same trials give the same next trial."""
    first = Trial(setup=STOCK, single=GARBLED)
    assert next_trial(STOCK, [first]) == next_trial(STOCK, [first])
    assert not isinstance(next_trial(STOCK, [first]), Conclusion)


def test_the_table_shows_what_each_trial_gave():
    """One row a trial, with accept length and first wrong token where there are any."""
    trial = Trial(setup=STOCK, single=GARBLED, accept_length=1.52, evidence="poem: token 3")
    assert table([trial]) == (("16/4", "garbled", "ok", "ok", "1.52", "poem: token 3"),)
