"""Carries a sweep out, one cell after the other, over ports that deploy and measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from ddtree_ops.measure.decide import Decision, decision
from ddtree_ops.measure.sweep import Arm, ArmFailure, Cell, CellResult, State, next_cell


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmOutcome:
    """What deploying an arm came to; with a failure the node is back at the release it had."""

    arm: Arm
    seconds: float
    failure: ArmFailure | None = None


class Node(Protocol):
    """The guarded node as a sweep needs it."""

    def deploy_arm(self, arm: Arm) -> ArmOutcome:
        """Brings the arm up through ready and smoke, or tells why not."""
        ...

    def measure(self, cell: Cell) -> CellResult | ArmFailure:
        """Runs one cell on the deployed arm."""
        ...


Record = Callable[[Mapping[str, object]], None]  # must have the entry on disk when it returns


def carry_out(state: State, node: Node, record: Record, *, deployed: str | None = None) -> Decision:
    """Runs every cell that is still missing and returns the decision.

    Each finished cell, failure and deploy is recorded before the next begins, so a sweep that was
    killed goes on from `read_state` of its ledger; `deployed` names the arm that the node runs now.
    """
    by_id = {arm.id: arm for arm in state.plan.arms}
    while (cell := next_cell(state)) is not None:
        if cell.arm != deployed:
            outcome = node.deploy_arm(by_id[cell.arm])
            state = _deployed(state, outcome, record)
            deployed = None if outcome.failure else cell.arm
            if outcome.failure:
                state = _failed(state, outcome.failure, record)
                continue
        result = node.measure(cell)
        if isinstance(result, ArmFailure):
            state, deployed = _failed(state, result, record), None
        else:
            record({"kind": "cell", "data": {"cell": asdict(cell), "values": dict(result.values)}})
            state = replace(state, results=(*state.results, result))
    return decision(state)


def _deployed(state: State, outcome: ArmOutcome, record: Record) -> State:
    record({"kind": "deployed", "data": {"arm": outcome.arm.id, "seconds": outcome.seconds}})
    return replace(state, deploys=(*state.deploys, (outcome.arm.id, outcome.seconds)))


def _failed(state: State, failure: ArmFailure, record: Record) -> State:
    record({"kind": "failed", "data": asdict(failure)})
    return replace(state, failures={**state.failures, failure.arm: failure})


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """How long a sweep may still take, from this node's own loads and cells."""

    least_s: float  # the present round, and no other
    most_s: float  # every visit that the cap allows


def remaining(state: State, *, cell_s: float, default_load_s: float) -> Remaining:
    """An estimate: loads cost the median of those seen, cells what one took."""
    loads = sorted(seconds for _, seconds in state.deploys)
    load = loads[len(loads) // 2] if loads else default_load_s
    groups = len(state.plan.workloads) * len(state.plan.concurrencies)
    visit = load + state.plan.cells_least * groups * cell_s
    longest = load + state.plan.cells_most * groups * cell_s
    round_ = max((result.cell.round for result in state.results), default=0)
    done = {visit.arm for visit in state.visits() if visit.round == round_}
    left = len(state.running) - len(done) if round_ == 0 else 0
    cap = max(0, state.plan.restart_cap - len(state.visits()))
    if next_cell(state) is None:
        return Remaining(least_s=0.0, most_s=0.0)
    return Remaining(least_s=max(1, left) * visit, most_s=max(1, cap) * longest)
