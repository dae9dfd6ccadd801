"""A sweep as data: arms, the ledger's state, the next cell, and nothing that touches a node."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from ddtree_ops.measure import race as racing
from ddtree_ops.measure.schedule import Values, balanced, needs_more, score
from ddtree_ops.model.errors import UsageError

STUCK = 1.05  # accept length at or below this with speculation on: nothing is accepted
FEWEST = 3  # contenders of a round, beside the baseline
SCREEN_ERROR = 0.05  # of a first visit: enough to tell the hopeless from the rest


class ArmKind(StrEnum):
    TREE = "tree"
    CHAIN = "chain"
    AUTOREGRESSIVE = "autoregressive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One configuration; `id` names it in ledgers and reports."""

    kind: ArmKind
    budget: int | None = None
    topk: int | None = None
    graphs: bool = True

    @property
    def id(self) -> str:
        name = f"{self.budget}/{self.topk or 'free'}" if self.kind is ArmKind.TREE else self.kind.value
        return name if self.graphs else f"{name} eager"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """What to measure and how sure to be; its restarts are capped at half of arms × repeats."""

    arms: tuple[Arm, ...]
    workloads: tuple[str, ...]
    concurrencies: tuple[int, ...] = (1,)
    repeats: int = 5  # of the full grid, which the sweep is held to half of
    cells_least: int = 2  # repeats of each workload × concurrency in one visit
    cells_most: int = 8
    rounds_least: int = 3  # of the leader and the baseline, before a decision
    tolerance: float = 0.02
    confidence: float = 0.97  # one-sided, for dropping an arm and for stopping
    objective: str = "user_rate"

    @property
    def baseline(self) -> str:
        """The arm that runs in every round, to show drift and what the others are worth: chain if there."""
        kinds = (ArmKind.CHAIN, ArmKind.AUTOREGRESSIVE, ArmKind.TREE)
        return min(self.arms, key=lambda arm: kinds.index(arm.kind)).id

    @property
    def restart_cap(self) -> int:
        return max(len(self.arms) + 2, len(self.arms) * self.repeats // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One arm × one workload at one concurrency × one repeat, within one round."""

    arm: str
    round: int
    workload: str
    concurrency: int
    repeat: int

    @property
    def start(self) -> int:
        """Where in the workload its prompts begin: the same for every arm, so that prompts pair up."""
        return 1000 * (100 * self.round + self.repeat)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """A finished cell; `values` holds the figures by name, among them the plan's objective."""

    cell: Cell
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFailure:
    """Why an arm is out: a result like any other, never ranked."""

    arm: str
    kind: str  # "crash" | "garbled" | "stuck" | "skipped" | "unusable"
    diagnosis: str
    first_wrong: str = ""  # prompt, position and tokens of a garbled arm


@dataclass(frozen=True, kw_only=True)
class State:
    """All that is known of a sweep; read from its ledger, equal ledgers give equal states."""

    plan: SweepPlan
    results: tuple[CellResult, ...] = ()
    failures: Mapping[str, ArmFailure] = field(default_factory=dict)
    deploys: tuple[tuple[str, float], ...] = ()  # arm, seconds; as often as it happened

    @cached_property
    def running(self) -> tuple[str, ...]:
        """The arms that did not fail, in the plan's order."""
        return tuple(arm.id for arm in self.plan.arms if arm.id not in self.failures)

    @cached_property
    def table(self) -> Mapping[tuple[str, int], Values]:
        """The objective's values of every visit (arm, round), in the order of measuring."""
        groups = {group: number for number, group in enumerate(_groups(self.plan))}
        found: dict[tuple[str, int], list[list[float]]] = defaultdict(lambda: [[] for _ in groups])
        for result in self.results:
            cell = result.cell
            group = groups[cell.workload, cell.concurrency]
            found[cell.arm, cell.round][group].append(result.values[self.plan.objective])
        return {key: tuple(map(tuple, visit)) for key, visit in found.items()}

    def visits(self, before: int | None = None) -> tuple[racing.Visit, ...]:
        """Every visit with at least one cell of each group, optionally of earlier rounds alone."""
        return tuple(
            _visit(arm, round_, values)
            for (arm, round_), values in self.table.items()
            if all(values) and (before is None or round_ < before)
        )


def _visit(arm: str, round_: int, values: Values) -> racing.Visit:
    mean, error = score(values)
    return racing.Visit(arm=arm, round=round_, score=mean, error=error if math.isfinite(error) else 0.0)


def arms(
    budgets: Sequence[int], topks: Sequence[int | None], graphs: Sequence[bool], *, baselines: bool = True
) -> tuple[Arm, ...]:
    """The grid's arms, baselines first; a cap above the budget is the budget's own, and not run twice."""
    if not budgets or not topks or not graphs:
        raise UsageError("sweep", "got an empty axis, expected at least one budget, top-k and graph mode")
    if min(budgets) < 1 or any(topk is not None and topk < 1 for topk in topks):
        raise UsageError("sweep", f"got budgets {budgets} and top-k {topks}, expected numbers above 0")
    first = max(graphs)
    kinds = (ArmKind.AUTOREGRESSIVE, ArmKind.CHAIN) if baselines else ()
    grid = [
        Arm(kind=ArmKind.TREE, budget=budget, topk=min(topk, budget) if topk else None, graphs=graph)
        for graph, budget, topk in itertools.product(graphs, budgets, topks)
    ]
    return tuple(dict.fromkeys([*(Arm(kind=kind, graphs=first) for kind in kinds), *grid]))


def next_cell(state: State) -> Cell | None:
    """The cell to run next, or None when the decision can be made; the same for the same state."""
    round_ = max((result.cell.round for result in state.results), default=0)
    while (order := lineup(state, round_)) is not None:
        for arm in order:
            cell = _missing(state, arm, round_)
            if cell is not None:
                return cell
        round_ += 1
    return None


def lineup(state: State, round_: int) -> tuple[str, ...] | None:
    """Who runs in a round, in order; None when the sweep is over before it."""
    running = state.running
    if round_ == 0:
        return balanced(running, 0) or None
    visits = state.visits(before=round_)
    contenders = standing(state, visits)
    if stop_reason(state, visits, contenders):
        return None
    room = state.plan.restart_cap - len(visits)
    keep = (state.plan.baseline,) if state.plan.baseline in running else ()
    width = max(FEWEST, len(running) >> round_)  # half as many each round: the best learn most
    best = [arm for arm in contenders if arm not in keep][: min(width, room - len(keep))]
    chosen = {*keep, *best}
    return balanced([arm for arm in running if arm in chosen], round_)


def standing(state: State, visits: tuple[racing.Visit, ...]) -> tuple[str, ...]:
    """The arms that can still win, best first."""
    race = racing.race(visits, state.running)
    if race is None:
        return state.running
    out = {loser.arm for loser in race.out(state.plan.confidence)}
    unseen = [arm for arm in state.running if arm not in {s.arm for s in race.standings}]
    return (*(s.arm for s in race.standings if s.arm not in out), *unseen)


def stop_reason(state: State, visits: tuple[racing.Visit, ...], contenders: Sequence[str]) -> str:
    """Why no further round is needed, or "" when one is."""
    plan, race = state.plan, racing.race(visits, state.running)
    if race is None or not contenders:
        return "no arm is left to measure"
    spent = len(visits)
    if plan.restart_cap - spent < FEWEST:
        return f"{spent} of {plan.restart_cap} allowed visits are used"
    watched = {race.leader, plan.baseline} & set(state.running)
    if min(race.seen.get(arm, 0) for arm in watched) < plan.rounds_least:
        return ""
    if len(contenders) == 1:
        return f"every arm but {contenders[0]} is out of the race"
    if race.settled(contenders, plan.tolerance, plan.confidence):
        return f"no other arm can be ahead of {race.leader} by more than {plan.tolerance:.0%}"
    return ""


def _groups(plan: SweepPlan) -> tuple[tuple[str, int], ...]:
    return tuple(itertools.product(plan.workloads, plan.concurrencies))


def _missing(state: State, arm: str, round_: int) -> Cell | None:
    """The next cell of a visit: all groups once, then again, until the visit is known well enough."""
    plan, groups = state.plan, _groups(state.plan)
    values = state.table.get((arm, round_), ((),) * len(groups))
    repeats = [len(group) for group in values]
    error = SCREEN_ERROR if round_ == 0 else plan.tolerance / 2
    level = min(repeats) == max(repeats)
    if level and not needs_more(values, least=plan.cells_least, most=plan.cells_most, error=error):
        return None
    workload, users = groups[repeats.index(min(repeats))]
    return Cell(arm=arm, round=round_, workload=workload, concurrency=users, repeat=min(repeats))


def read_state(plan: SweepPlan, entries: Iterable[Mapping[str, object]]) -> State:
    """The state from a ledger's entries; a cell that is in it twice counts once."""
    results: dict[Cell, CellResult] = {}
    failures: dict[str, ArmFailure] = {}
    deploys: list[tuple[str, float]] = []
    for entry in entries:
        kind, data = entry.get("kind"), entry.get("data")
        if not isinstance(data, dict):
            continue
        if kind == "cell":
            result = CellResult(cell=Cell(**data["cell"]), values=data["values"])
            results.setdefault(result.cell, result)
        elif kind == "failed":
            failures.setdefault(str(data["arm"]), ArmFailure(**data))
        elif kind == "deployed":
            deploys.append((str(data["arm"]), float(data["seconds"])))
    return State(plan=plan, results=tuple(results.values()), failures=failures, deploys=tuple(deploys))
