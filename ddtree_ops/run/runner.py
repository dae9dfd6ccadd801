"""Carries a playbook out on one node: step by step, and back again when one of them fails."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_none

from ddtree_ops.model.errors import Failed, OpsError, Refused, Unproven, Unreachable, UsageError
from ddtree_ops.model.host import Host
from ddtree_ops.model.plan import PlannedStep, Playbook, PlaybookStep
from ddtree_ops.model.result import INTERRUPTED, NodeResult, Outcome
from ddtree_ops.node.node import Node
from ddtree_ops.node.values import Entry
from ddtree_ops.plan.steps import CATALOGUE
from ddtree_ops.run import resolve
from ddtree_ops.run.context import Asked, NodeRun, World
from ddtree_ops.run.interrupts import Interrupted
from ddtree_ops.run.rescue import relink, resume_lease
from ddtree_ops.run.steps import STEPS, Step, Stop, release_lease

Work = Callable[[NodeRun, list[PlaybookStep]], Outcome]  # adds each step to the list before it begins it


def run_playbook(world: World, host: Host, asked: Asked, playbook: Playbook) -> NodeResult:
    """Takes one node through the playbook; every failure ends with the node put back and a result."""
    return run_on_node(world, host, asked, playbook, _every_step)


def run_on_node(world: World, host: Host, asked: Asked, playbook: Playbook, work: Work) -> NodeResult:
    """Does some work on one node by the playbook's steps; whatever ends it, the steps are taken back."""
    began = time.monotonic()
    try:
        with ExitStack() as links:
            link = links.enter_context(world.connect(host))
            run = NodeRun(
                world=world,
                host=host,
                asked=asked,
                playbook=playbook,
                links=links,
                link=link,
                node=Node(host.name, link, resolve.find_service(asked, host, link)),
                id=uuid.uuid4().hex[:12],
            )
            result = _carried_out(run, work)
    except OpsError as error:
        outcome = Outcome.UNPROVEN if isinstance(error, Unproven) else Outcome.REFUSED
        error.on(host.name)
        return NodeResult(
            node=host.name,
            outcome=outcome,
            exit_code=error.exit_code,
            error=error,
            seconds=time.monotonic() - began,
        )
    except Interrupted:
        return NodeResult(
            node=host.name, outcome=Outcome.REFUSED, exit_code=INTERRUPTED, seconds=time.monotonic() - began
        )
    return _timed(result, run, time.monotonic() - began)


def _carried_out(run: NodeRun, work: Work) -> NodeResult:
    done: list[PlaybookStep] = []
    try:
        outcome = work(run, done)
    except Stop:
        undo(run, done)
        return _ended(run, Outcome.UNCHANGED, 0)
    except OpsError as error:
        return _failed(run, done, error)
    except Interrupted as signal:
        return _failed(run, done, signal)
    except BaseException:  # a defect of ours: the node comes first, the traceback after it
        with run.world.interrupts.shield(), suppress(OpsError):
            undo(run, done)
        raise
    with run.world.interrupts.shield():
        undo(run, [step for step in done if step.step == "lock"])
    return _ended(run, outcome, 0)


def _every_step(run: NodeRun, done: list[PlaybookStep]) -> Outcome:
    for step in run.playbook.steps:
        done.append(step)
        apply_step(run, step)
    return Outcome.CONFIRMED if any(step.step == "confirm" for step in done) else Outcome.UNCHANGED


def apply_step(run: NodeRun, step: PlaybookStep, steps: Mapping[str, Step] = STEPS) -> None:
    """Shows and does one step, after a look at whether the lease still holds."""
    spec = CATALOGUE[step.step]
    summary = _summary(run, step)
    run.world.screen.step(run.name, step.step, summary)
    timeout_s = spec.timeout_s if step.timeout_s is None else step.timeout_s
    for attempt in once_more(run):
        with attempt:
            if run.keeper is not None:
                run.keeper.check()
            steps[step.step].apply(run, step, timeout_s)


def once_more(run: NodeRun, back: Callable[[NodeRun], None] | None = None) -> Retrying:
    """A step whose link was lost is done again over a new one; every step may be repeated.

    Before the first facts there is nothing to come back for, and a node that cannot be reached is refused at
    once. `back` makes the new link; left out, it also takes the lease up again, or fails.
    """
    return Retrying(
        retry=retry_if_exception_type(Unreachable),
        stop=stop_after_attempt(2 if run.facts is not None else 1),
        before_sleep=lambda _: (back or _back_to_go_on)(run),
        wait=wait_none(),
        reraise=True,
    )


def _back_to_go_on(run: NodeRun) -> None:
    relink(run)
    resume_lease(run)


def _back_to_undo(run: NodeRun) -> None:
    """The node's guard may have acted in the meantime: then that is the way back."""
    relink(run)
    with suppress(OpsError):
        resume_lease(run)


def _failed(run: NodeRun, done: list[PlaybookStep], cause: OpsError | Interrupted) -> NodeResult:
    """The node put back, and the result that says by what it failed."""
    goal = run.goal
    touched = run.armed or run.installed
    failed_release = goal.id if goal is not None and touched and not goal.reused else None
    error = (
        cause if isinstance(cause, OpsError) else Failed("interrupted", f"got {cause}, expected to finish")
    )
    run.world.screen.failed(run.name, f"{error.on(run.name)}")
    try:
        if isinstance(cause, Unreachable):
            _back_to_undo(run)
    except (OpsError, Interrupted):
        out_of_reach = _unproven(run, error)
        return _ended(run, Outcome.UNPROVEN, Unproven.exit_code, error=out_of_reach, failed=failed_release)
    with run.world.interrupts.shield():
        unproven = undo(run, done)
        if failed_release is not None:
            _remember(run, failed_release, error)
    if unproven is not None:
        return _ended(run, Outcome.UNPROVEN, unproven.exit_code, error=unproven, failed=failed_release)
    if isinstance(cause, Interrupted):
        outcome = Outcome.REVERTED if touched else Outcome.REFUSED
        return _ended(run, outcome, INTERRUPTED, error=error, failed=failed_release)
    if isinstance(cause, Refused | UsageError) and not touched:
        return _ended(run, Outcome.REFUSED, cause.exit_code, error=error)
    return _ended(run, Outcome.REVERTED, Failed.exit_code, error=error, failed=failed_release)


def undo(run: NodeRun, done: list[PlaybookStep]) -> OpsError | None:
    """Takes the steps back, last first; returns what kept the node from being proven, if anything."""
    problem: OpsError | None = None
    for step in reversed(done):
        take_back = STEPS[step.step].undo
        if take_back is None or step.undo == ():
            continue
        try:
            for attempt in once_more(run, _back_to_undo):
                with attempt:
                    take_back(run, step)
        except OpsError as error:
            run.world.screen.warn(run.name, f"undo of {step.step}: {error}")
            if step.step in ("install", "guard") and problem is None:
                problem = error if isinstance(error, Unproven) else _unproven(run, error)
    with suppress(OpsError):
        release_lease(run)
    return problem


def _unproven(run: NodeRun, error: OpsError) -> Unproven:
    return Unproven(
        "revert",
        f"could not be carried out from here: {error}; the node's guard reverts by itself within "
        f"{run.host.lease_s:.0f} s",
        hint=f"ddtree-ops status --host {run.name}",
        node=run.name,
    )


def _remember(run: NodeRun, release: str, error: OpsError) -> None:
    """Keeps why the release failed, beside the verdicts that it got, in both journals."""
    detail: dict[str, object] = {
        "playbook": run.playbook.name,
        "error": str(error),
        "changes": list(run.plan.changes) if run.plan else [],
        "gates": [
            {"name": gate.name, "passed": gate.passed, "evidence": gate.evidence} for gate in run.gates
        ],
    }
    entry = Entry(run=run.id, by=run.world.operator, event="failed", release=release, detail=detail)
    with suppress(OpsError):
        run.node.note(entry)
    with suppress(OpsError):
        run.world.journal.append(run.name, entry)


def _ended(
    run: NodeRun,
    outcome: Outcome,
    exit_code: int,
    *,
    error: OpsError | None = None,
    failed: str | None = None,
) -> NodeResult:
    confirmed = outcome is Outcome.CONFIRMED
    current = run.current.id if run.current else (run.facts.current if run.facts else None)
    return NodeResult(
        node=run.name,
        outcome=outcome,
        exit_code=exit_code,
        release=run.aim().id if confirmed else current,
        previous=current if confirmed else (run.facts.previous if run.facts else None),
        failed_release=failed,
        gates=tuple(run.gates),
        error=error,
    )


def _timed(result: NodeResult, run: NodeRun, seconds: float) -> NodeResult:
    return replace(result, ssh_round_trips=run.link.round_trips, seconds=seconds)


def _summary(run: NodeRun, step: PlaybookStep) -> str:
    planned: tuple[PlannedStep, ...] = run.plan.steps if run.plan else ()
    for candidate in planned:
        if candidate.step == step:
            return candidate.summary
    words = {"goal": "?", "current": "?", "service": f"{run.node.service}.service"}
    return " ".join(step.command) or CATALOGUE[step.step].summary.format(**words)
