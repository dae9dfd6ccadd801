"""The controlled experiment as a decision procedure: results so far → the next trial, or the conclusion.

Every fault that is thought of says which symptom it would show in any setup. A result strikes out
the faults that would have shown another one; the next trial is the one whose result is expected to
leave the fewest, with as few factors changed at once as possible. No trial is run whose result is
already certain.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    OK = "ok"
    GARBLED = "garbled"
    CRASH = "crash"
    POOR = "accepts nothing"  # right output, accept length about 1


class Symptom(StrEnum):
    """What a trial showed, its three checks taken together."""

    OK = "right"
    BAD = "garbled"
    POOR = "accepting nothing"
    BATCH = "garbled with several requests at once"
    CACHED = "garbled after a prefix hit"
    BOTH = "garbled with several requests at once and after a prefix hit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What one trial runs: the failing profile's factors, some of them changed."""

    budget: int | None  # None: a chain, or nothing drafted
    topk: int | None
    graphs: bool
    patches: frozenset[str] = frozenset()  # of verify-width and graph-width
    drafter: bool = True
    plain_draft: bool = False  # drafter explicitly unquantised
    own_block: bool = False  # the drafter's own block size given explicitly
    cache: bool = True  # prefix cache

    @property
    def tree(self) -> bool:
        return self.drafter and self.budget is not None

    @property
    def label(self) -> str:
        """Short name, as the table of trials prints it: `16/4 eager +verify-width`."""
        words = [f"{self.budget}/{self.topk or 'free'}" if self.tree else "chain"]
        words = words if self.drafter else ["autoregressive"]
        words += [] if self.graphs else ["eager"]
        words += [f"+{name}" for name in sorted(self.patches)]
        words += ["draft unquantised"] if self.plain_draft else []
        words += ["draft's own block"] if self.own_block else []
        return " ".join(words + ([] if self.cache else ["no prefix cache"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One setup's result: one request alone, several at once, and one repeated to hit the prefix cache."""

    setup: Setup
    single: Verdict
    batch: Verdict = Verdict.OK
    cached: Verdict = Verdict.OK
    accept_length: float | None = None
    evidence: str = ""  # the first wrong token, or the fatal line

    @property
    def symptom(self) -> Symptom:
        if self.single is Verdict.POOR:
            return Symptom.POOR
        if self.single is not Verdict.OK:
            return Symptom.BAD
        batch, cached = self.batch is not Verdict.OK, self.cached is not Verdict.OK
        if batch and cached:
            return Symptom.BOTH
        if batch or cached:
            return Symptom.BATCH if batch else Symptom.CACHED
        return Symptom.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One explanation: where it shows, what it is called, and what to do about it."""

    name: str
    shows: Callable[[Setup, int], bool]  # setup, block size
    as_: tuple[Symptom, ...]
    path: str
    reason: str
    cure: str
    lacks: frozenset[str] = frozenset()  # patches that the failing profile must lack

    def predicts(self, setup: Setup, block: int) -> tuple[Symptom, ...]:
        return self.as_ if self.shows(setup, block) else (Symptom.OK,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The end of an isolation; `faults` has one name, several that no trial tells apart, or none."""

    faults: tuple[str, ...]
    sentence: str
    restarts: int


def _wide(setup: Setup, block: int) -> bool:
    return setup.tree and (setup.budget or 0) + 1 > block


def _graphed(setup: Setup, block: int) -> bool:
    return _wide(setup, block) and setup.graphs


BAD, POOR = (Symptom.BAD,), (Symptom.POOR,)
BATCH, CACHED = (Symptom.BATCH,), (Symptom.CACHED, Symptom.BOTH)
VERIFY, GRAPH = frozenset({"verify-width"}), frozenset({"graph-width"})
SELFTEST = "run eager, and see `ddtree-ops selftest`"
ONE_BY_ONE = "set --max-running-requests 1 until it is mended"
NO_CACHE = "run with --disable-radix-cache"
BUFFERS = "buffers of {block} rows are replayed for {width}"

# Of one name the broader explanation comes last: it is the one that is told while both are left.
FAULTS = (
    Fault(name="patch absent", as_=BAD, lacks=VERIFY,
          shows=lambda s, b: _wide(s, b) and not s.patches & VERIFY,
          path="padding path", reason="width {block} is used where {width} is needed",
          cure="apply `verify-width`"),
    Fault(name="patch absent", as_=BAD, lacks=VERIFY | GRAPH,
          shows=lambda s, b: (_wide(s, b) and not s.patches & VERIFY)
          or (_graphed(s, b) and not s.patches & GRAPH),
          path="padding path", reason="width {block} is used where {width} is needed",
          cure="apply `verify-width`, and `graph-width` where graphs are on"),
    Fault(name="graph width", as_=BAD, shows=_graphed,
          path="graph path", reason=BUFFERS + ", with `graph-width` too", cure=SELFTEST),
    Fault(name="graph width", as_=BAD, lacks=GRAPH,
          shows=lambda s, b: _graphed(s, b) and not s.patches & GRAPH,
          path="graph path", reason=BUFFERS, cure="apply `graph-width`"),
    Fault(name="graphs", as_=BAD, shows=lambda s, _: s.drafter and s.graphs,
          path="graph path", reason="graphs of any width are wrong", cure=SELFTEST),
    Fault(name="padding", as_=BAD, shows=_wide,
          path="padding path", reason="widths above {block} are wrong, with `verify-width` too",
          cure="keep the budget below {block}, and see `ddtree-ops patch prove`"),
    Fault(name="top-k", as_=BAD, shows=lambda s, _: s.tree and s.topk != 1,
          path="branching", reason="nodes see branches that are not their own", cure="run with --topk 1"),
    Fault(name="tree", as_=BAD, shows=lambda s, _: s.tree,
          path="tree path", reason="trees of any shape are wrong, chains are not", cure="run the chain"),
    Fault(name="speculation", as_=BAD, shows=lambda s, _: s.drafter,
          path="speculation", reason="chains are wrong as well as trees", cure="run without a drafter"),
    Fault(name="target", as_=BAD, shows=lambda *_: True,
          path="target", reason="it is wrong without a drafter too", cure="look outside speculation"),
    Fault(name="draft quantised", as_=POOR, shows=lambda s, _: s.drafter and not s.plain_draft,
          path="drafter", reason="it is quantised like the target",
          cure="set --speculative-draft-model-quantization unquant"),
    Fault(name="block size", as_=POOR, shows=lambda s, _: s.drafter and not s.own_block,
          path="drafter", reason="it runs another block size than its own {block}",
          cure="set --speculative-dflash-block-size {block}"),
    Fault(name="wrong drafter", as_=POOR, shows=lambda s, _: s.drafter,
          path="drafter", reason="it does not fit the target", cure="check its path and revision"),
    Fault(name="batch", as_=BATCH, shows=lambda s, _: s.tree,
          path="batch path", reason="requests disturb each other in the verify pass", cure=ONE_BY_ONE),
    Fault(name="batch", as_=BATCH, shows=lambda s, _: s.drafter,
          path="batch path", reason="requests disturb each other in the verify pass", cure=ONE_BY_ONE),
    Fault(name="target batch", as_=BATCH, shows=lambda *_: True,
          path="batch path", reason="requests disturb each other without a drafter too",
          cure="look outside speculation"),
    Fault(name="prefix cache", as_=CACHED, shows=lambda s, _: s.cache and s.tree,
          path="prefix cache", reason="what is read back from it is wrong", cure=NO_CACHE),
    Fault(name="prefix cache", as_=CACHED, shows=lambda s, _: s.cache,
          path="prefix cache", reason="what is read back from it is wrong", cure=NO_CACHE),
)  # fmt: skip


def next_trial(
    failing: Setup,
    trials: Sequence[Trial],
    *,
    block: int = 8,
    possible: Callable[[Setup], bool] = lambda _: True,
) -> Setup | Conclusion:
    """The setup to try next, or the conclusion; the first trial is the failing profile itself.

    `possible` says which setups the node's engine can run at all.
    """
    if not trials:
        return failing
    left = remaining(trials, block)
    if trials[0].symptom is Symptom.OK or len({fault.name for fault in left}) <= 1:
        return _conclude(failing, trials, left, block)
    tried = {trial.setup for trial in trials}
    best: tuple[float, Setup] | None = None
    for setup in filter(possible, candidates(failing, block)):
        expected = _expected(left, setup, block)
        if setup not in tried and expected < len(_names(left)) and (best is None or expected < best[0]):
            best = expected, setup
    return best[1] if best else _conclude(failing, trials, left, block)


def remaining(trials: Sequence[Trial], block: int) -> tuple[Fault, ...]:
    """The faults that no result so far contradicts."""
    patches = trials[0].setup.patches
    return tuple(
        fault
        for fault in FAULTS
        if not fault.lacks & patches
        and all(trial.symptom in fault.predicts(trial.setup, block) for trial in trials)
    )


def candidates(failing: Setup, block: int) -> Iterator[Setup]:
    """Setups with one factor changed, then those with two; each in the order in which it teaches most."""
    single = list(_changes(failing, block))
    for change in single:
        yield replace(failing, **change)
    for one, other in itertools.combinations(single, 2):
        if not set(one) & set(other):
            yield replace(failing, **{**one, **other})


def _changes(failing: Setup, block: int) -> Iterator[dict[str, Any]]:
    if failing.tree and (failing.budget or 0) + 1 > block:
        yield {"budget": block - 1}
    if failing.graphs:
        yield {"graphs": False}
    if failing.tree and failing.topk != 1:
        yield {"topk": 1}
    for names in (("verify-width",), ("graph-width",), ("verify-width", "graph-width")):
        complete = "verify-width" in failing.patches | set(names)  # graph-width brings verify-width along
        if failing.tree and complete and not failing.patches & set(names):
            yield {"patches": failing.patches | set(names)}
    if failing.drafter:
        yield {"plain_draft": True}
        yield {"own_block": True}
    if failing.tree:
        yield {"budget": None, "topk": None}
    if failing.drafter:
        yield {"drafter": False, "budget": None, "topk": None}
    if failing.cache:
        yield {"cache": False}


def _names(faults: Sequence[Fault]) -> set[str]:
    return {fault.name for fault in faults}


def _expected(left: Sequence[Fault], setup: Setup, block: int) -> float:
    """How many fault names a trial of this setup would leave, on average over the remaining faults."""
    groups: dict[Symptom, list[Fault]] = {}
    for fault in left:
        for symptom in fault.predicts(setup, block):
            groups.setdefault(symptom, []).append(fault)
    shares = [len(group) * len(_names(group)) for group in groups.values()]
    return sum(shares) / sum(len(group) for group in groups.values())


def _conclude(failing: Setup, trials: Sequence[Trial], left: Sequence[Fault], block: int) -> Conclusion:
    evidence = _evidence(trials)
    if trials[0].symptom is Symptom.OK:
        sentence = f"not reproduced: {evidence}"
        return Conclusion(faults=(), sentence=sentence, restarts=len(trials))
    names = tuple(dict.fromkeys(fault.name for fault in left))
    if not left:
        sentence = f"no single fault explains the results: {evidence}"
        return Conclusion(faults=(), sentence=sentence, restarts=len(trials))
    fault = [fault for fault in left if fault.name == names[0]][-1]
    places = {"block": block, "width": (failing.budget or 0) + 1}
    told = f"{fault.path}: {evidence}; {fault.reason}: {fault.cure}".format(**places)
    if len(names) > 1:
        told = f"no trial tells {' and '.join(names)} apart; the first: {told}"
    return Conclusion(faults=names, sentence=told, restarts=len(trials))


def _evidence(trials: Sequence[Trial]) -> str:
    """`garbled: 16/4, 16/4 eager; right: 7/4`, symptoms in the order of their first trial."""
    groups: dict[Symptom, list[str]] = {}
    for trial in trials:
        crash = " (crash)" if Verdict.CRASH in (trial.single, trial.batch, trial.cached) else ""
        groups.setdefault(trial.symptom, []).append(trial.setup.label + crash)
    return "; ".join(f"{symptom}: {', '.join(labels)}" for symptom, labels in groups.items())


def table(trials: Sequence[Trial]) -> tuple[tuple[str, ...], ...]:
    """Rows for people: setup, the three checks, accept length, evidence."""
    return tuple(
        (
            trial.setup.label,
            trial.single.value,
            trial.batch.value,
            trial.cached.value,
            "" if trial.accept_length is None else f"{trial.accept_length:.2f}",
            trial.evidence,
        )
        for trial in trials
    )
