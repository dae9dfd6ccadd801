"""A sweep on a node: every arm a guarded deploy, every cell in the ledger before the next begins."""

from __future__ import annotations

import shlex
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from ddtree_ops.engine.diagnosis import explain
from ddtree_ops.measure.client import Closed
from ddtree_ops.measure.decide import Decision, decision, judge_acceptance
from ddtree_ops.measure.drive import ArmOutcome, carry_out, remaining
from ddtree_ops.measure.record import samples_jsonl, write_file
from ddtree_ops.measure.sweep import Arm, ArmFailure, Cell, CellResult
from ddtree_ops.measure.sweep_report import cell_values
from ddtree_ops.measure.workload import Workload, workload
from ddtree_ops.model.errors import Failed
from ddtree_ops.model.host import Host
from ddtree_ops.model.plan import Playbook, PlaybookStep
from ddtree_ops.model.profile import Profile
from ddtree_ops.model.release import Gate
from ddtree_ops.model.result import NodeResult, Outcome
from ddtree_ops.run.clock import Deadline
from ddtree_ops.run.context import Asked, NodeRun, World
from ddtree_ops.run.ledger import Ledger, span_words
from ddtree_ops.run.loads import Loader, LoadSpec, Measured, loader
from ddtree_ops.run.rescue import REVERT_MARGIN_S
from ddtree_ops.run.runner import once_more, run_on_node
from ddtree_ops.run.steps import Step, usual_phases
from ddtree_ops.run.trials import Trials, Unfit
from ddtree_ops.run.vary import arm_profile

CELL_S = 20.0  # a cell, until one was measured
LONGEST_LOAD_S = 1800.0  # of the release that a guard goes back to, where no profile says
LOAD_S = 300.0  # a load, until this node has shown its own
TAIL = 200  # journal lines that an engine's death is explained from
GHOST_POLL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOrder:
    """How the operator wants a sweep carried out."""

    spec: LoadSpec
    deploy_winner: bool = False


def run_sweep(
    world: World, host: Host, asked: Asked, playbook: Playbook, ledger: Ledger, order: SweepOrder
) -> tuple[NodeResult, Decision]:
    """Carries the ledger's sweep to its decision; whatever ends it, the node is back where it was.

    With `deploy_winner` and a final decision the node ends at the winner's release, confirmed.
    """

    def work(run: NodeRun, done: list[PlaybookStep]) -> Outcome:
        bench = _Bench(run=run, ledger=ledger, order=order)
        trials = Trials(run=run, done=done, own={"bench": Step(apply=bench.warm)})
        await_ghost(run, ledger)
        bench.prepare(trials)
        made = carry_out(ledger.state, bench, ledger.record)
        if order.deploy_winner and made.final and made.winner is not None:
            return bench.deploy(made.winner)
        trials.go_back()
        return Outcome.UNCHANGED

    result = run_on_node(world, host, asked, playbook, work)
    return result, decision(ledger.state)


def await_ghost(run: NodeRun, ledger: Ledger) -> None:
    """Waits until the node has put itself back after an earlier, killed run of this sweep.

    The ledger's folder is locked, so a run that it names is dead; a lock of anybody else refuses us later.
    """
    facts = run.node.probe(venv="")
    load_s = run.asked.profile.load_timeout_s if run.asked.profile else LONGEST_LOAD_S
    deadline = Deadline(run.world.clock, run.host.lease_s + REVERT_MARGIN_S + load_s)
    while (armed := facts.guard) is not None and armed.run in ledger.runs:
        hint = f"ddtree-ops unlock --force --host {run.name} wakes it"
        deadline.check("guard", f"the one of this sweep's last run still {armed.state}", hint)
        left = f"{max(0.0, armed.lease_left_s):.0f} s of its lease left"
        run.world.screen.progress(run.name, f"the node's guard is yet to end this sweep's last run: {left}")
        run.world.clock.sleep(GHOST_POLL_S)
        facts = run.node.probe(venv="")
    if facts.lock is not None and facts.lock.run in ledger.runs:
        run.node.unlock(run=facts.lock.run)
    ledger.begin(run.id)


@dataclass(slots=True, kw_only=True)
class _Bench:
    """The guarded node as `carry_out` drives it."""

    run: NodeRun
    ledger: Ledger
    order: SweepOrder
    trials: Trials = field(init=False)
    base: Profile = field(init=False)
    loads: dict[str, Workload] = field(init=False)
    cell_s: list[float] = field(default_factory=list)
    load_s: float = LOAD_S
    up: str | None = None  # the arm that the node runs
    invocation: str = ""  # of its process
    told: set[str] = field(default_factory=set)

    def prepare(self, trials: Trials) -> None:
        self.trials = trials
        self.base = trials.open()
        self.loads = {name: workload(name) for name in self.ledger.state.plan.workloads}
        self.load_s = sum(usual_phases(self.run).values()) or LOAD_S
        self.ledger.describe(self.run.known(), self.base)

    def deploy_arm(self, arm: Arm) -> ArmOutcome:
        self._tell(arm)
        began, self.up = time.monotonic(), None
        try:
            self.trials.bring_up(arm_profile(self.base, arm))
        except Unfit as unfit:
            failure = _failure(self.run, arm, unfit)
            self.run.world.screen.warn(self.run.name, f"{arm.id}: {failure.kind}: {failure.diagnosis}")
            return ArmOutcome(arm=arm, seconds=time.monotonic() - began, failure=failure)
        unit = once_more(self.run)(self.run.node.observe).unit
        self.up, self.invocation = arm.id, unit.invocation
        self.ledger.record({"kind": "command", "data": {"arm": arm.id, "argv": shlex.join(unit.exec_start)}})
        return ArmOutcome(arm=arm, seconds=time.monotonic() - began)

    def warm(self, run: NodeRun, _step: PlaybookStep, _timeout_s: float) -> None:
        """The playbook's bench: a first load, whose figures nobody needs."""
        with self._loader() as load:
            for source in self.loads.values():
                users = max(self.ledger.state.plan.concurrencies)
                warm = load.warm(source, users, mark=f"{run.id}-warm", label=f"{source.name} warm-up")
                if not any(sample.ok for sample in warm.result.samples):
                    why = "; ".join(warm.summary.findings) or "no answer"
                    raise Failed("bench", f"got {why}, expected the warm-up to be answered")

    def measure(self, cell: Cell) -> CellResult | ArmFailure:
        return once_more(self.run)(self._measure, cell)

    def deploy(self, arm: Arm) -> Outcome:
        """Confirms the winner; a node that ran it all along goes back to just that release."""
        run, profile = self.run, arm_profile(self.base, arm)
        if self.up != arm.id:
            self.trials.bring_up(profile)
        if run.current is not None and run.aim().release.fingerprint == run.current.fingerprint:
            self.trials.go_back()
            return Outcome.UNCHANGED
        self.trials.keep()
        return Outcome.CONFIRMED

    def _measure(self, cell: Cell) -> CellResult | ArmFailure:
        if self.run.keeper is not None:
            self.run.keeper.check()
        began = time.monotonic()
        arm = next(arm for arm in self.ledger.state.plan.arms if arm.id == cell.arm)
        label = f"{cell.arm} round {cell.round + 1}: {self.loads[cell.workload].name} ×{cell.concurrency}"
        with self._loader() as load:
            found = load.measure(
                self.loads[cell.workload],
                Closed(concurrency=cell.concurrency),
                mark=self.ledger.mark,
                start=cell.start,
                label=label,
            )
        self.cell_s.append(time.monotonic() - began)
        failure = self._unusable(arm, found) or judge_acceptance(arm, found.summary.accept_token_weighted)
        if failure is not None:
            self.run.world.screen.warn(self.run.name, f"{arm.id}: {failure.kind}: {failure.diagnosis}")
            return failure
        write_file(self.ledger.samples_of(cell), samples_jsonl(found.result.samples))
        return CellResult(cell=cell, values=cell_values(found.summary))

    def _loader(self) -> AbstractContextManager[Loader]:
        return loader(self.run, self.run.aim().release.profile, self.order.spec)

    def _unusable(self, arm: Arm, found: Measured) -> ArmFailure | None:
        """Why a load's figures can't stand for its arm: its engine died, or did not answer as it should."""
        objective = self.ledger.state.plan.objective
        if found.summary.usable and objective in cell_values(found.summary):
            return None
        seen = self.run.node.observe(tail=TAIL)
        if seen.unit.invocation != self.invocation or not seen.unit.running:
            why = explain(line.message for line in seen.lines)
            told = why.message if why else f"the unit is {seen.unit.active}"
            return ArmFailure(arm=arm.id, kind="crash", diagnosis=f"died under load: {told}")
        missing = f"its answers give no {objective}"
        return ArmFailure(arm=arm.id, kind="unusable", diagnosis="; ".join(found.summary.findings) or missing)

    def _tell(self, arm: Arm) -> None:
        """What comes next, how long all may take, and which arms have just dropped out."""
        state = self.ledger.state
        for ranked in decision(state).ranking:
            if ranked.note.startswith("cannot win") and ranked.arm.id not in self.told:
                self.told.add(ranked.arm.id)
                self.run.world.screen.note(self.run.name, f"{ranked.arm.id} {ranked.note}")
        cell_s = sum(self.cell_s) / len(self.cell_s) if self.cell_s else CELL_S
        left = remaining(state, cell_s=cell_s, default_load_s=self.load_s)
        self.run.world.screen.note(
            self.run.name,
            f"arm {arm.id}; {len(state.results)} cells done, {span_words(left.least_s, left.most_s)} to go",
        )


def _failure(run: NodeRun, arm: Arm, unfit: Unfit) -> ArmFailure:
    """What an arm's failed deploy says about the arm."""
    told = unfit.error.message.split("; its journal's last lines")[0].removeprefix("got ")
    if unfit.step in ("preflight", "plan", "selftest"):
        return ArmFailure(arm=arm.id, kind="skipped", diagnosis=f"{unfit.step}: {unfit.error}")
    failed = [gate for gate in run.gates if not gate.passed and gate.name != "smoke"]
    if unfit.step in ("ready", "bench") or not failed:
        run.node.observe()  # a lost link is no crash: this raises Unreachable
        return ArmFailure(arm=arm.id, kind="crash", diagnosis=told)
    if all(gate.name == "accept length" for gate in failed):
        return ArmFailure(arm=arm.id, kind="stuck", diagnosis=failed[0].evidence)
    return ArmFailure(arm=arm.id, kind="garbled", diagnosis=told, first_wrong=_first_wrong(failed))


def _first_wrong(failed: list[Gate]) -> str:
    told = next((gate for gate in failed if gate.name == "rescore"), failed[0])
    return f"{told.prompt}: {told.evidence}"
