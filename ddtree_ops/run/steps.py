"""What each step does and how it is undone; the order comes from the playbook."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ddtree_ops.model.errors import Failed, OpsError, Refused, Unproven
from ddtree_ops.model.facts import Sources
from ddtree_ops.model.plan import Goal, PlaybookStep
from ddtree_ops.model.profile import Profile
from ddtree_ops.model.release import Gate, Release
from ddtree_ops.node.values import Entry, Proof
from ddtree_ops.patching.apply import unified_diff
from ddtree_ops.plan.plan import make_plan
from ddtree_ops.plan.preflight import Intent, preflight, warnings
from ddtree_ops.run import resolve, selftest, smoke
from ddtree_ops.run.bench import bench_gate
from ddtree_ops.run.context import NodeRun
from ddtree_ops.run.examine import examined_gate
from ddtree_ops.run.models import model_shape
from ddtree_ops.run.ready import await_ready, phase_seconds
from ddtree_ops.run.rescue import await_guard, keep_lease

PROOF_TEXT = "Write a short poem about the ocean."
LOCK_TTL_S = 600.0  # until the guard is armed; from then on its lease renews both


class Stop(Exception):
    """The goal is reached, or only the plan was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`apply` does it within its deadline; `undo` takes it back, also after half of it."""

    apply: Callable[[NodeRun, PlaybookStep, float], None]
    undo: Callable[[NodeRun, PlaybookStep], None] | None = None


def lock(run: NodeRun, _step: PlaybookStep, _timeout_s: float) -> None:
    if not run.asked.dry_run:
        run.node.lock(who=run.world.operator, run=run.id, ttl_s=LOCK_TTL_S)


def unlock(run: NodeRun, _step: PlaybookStep) -> None:
    if not run.asked.dry_run:
        run.node.unlock(run=run.id)


def probe(run: NodeRun, _step: PlaybookStep, _timeout_s: float) -> None:
    run.facts = resolve.probe(run.node, run.asked, run.world.patches)
    if run.found is not None:
        return
    run.found = run.facts
    for line in warnings(run.facts):
        run.world.screen.warn(run.name, line)


def check(run: NodeRun, _step: PlaybookStep, _timeout_s: float) -> None:
    facts = replace(run.known(), guard=None) if run.armed else run.known()  # its own guard is no obstacle
    profile = resolve.wanted_profile(facts, run.asked, run.node.service)
    sets = resolve.choose_sets(profile, facts.sglang.ddtree)
    preflight(
        facts,
        Intent(
            profile=profile,
            provides=resolve.provided_by(sets, run.world.patches),
            accept_modified=run.asked.accept_modified,
            shape=model_shape(facts),
        ),
    )


def plan(run: NodeRun, _step: PlaybookStep, _timeout_s: float) -> None:
    run.current = resolve.settle_current(run)
    run.goal = resolve.goal(run, run.current)
    run.plan = make_plan(
        facts=run.known(),
        playbook=run.playbook,
        current=run.current,
        goal=run.goal,
        source_diff=unified_diff(run.goal.tree),
    )
    run.world.screen.plan(run.plan)
    if run.plan.unchanged or run.asked.dry_run:
        raise Stop
    if not run.world.screen.ask(run.plan):
        raise Refused("plan", "got no consent, expected a yes", hint="--yes answers beforehand")
    keep_found(run)


def baseline(run: NodeRun, _step: PlaybookStep, timeout_s: float) -> None:
    """Smokes what runs now; its verdict is what a revert is held to."""
    if run.current is None or not run.known().unit.running or run.baseline is not None:
        return
    verdict = smoke.verdict(run, run.current.profile, timeout_s, brief=True)
    run.baseline = replace(verdict, name="baseline")
    run.world.screen.gate(run.name, run.baseline)


def guard(run: NodeRun, _step: PlaybookStep, _timeout_s: float) -> None:
    lease_s = run.host.lease_s
    run.node.arm(
        run=run.id,
        by=run.world.operator,
        release=run.aim().id,
        previous=run.previous,
        lease_s=lease_s,
        proof=_proof(run),
    )
    run.armed = True
    keep_lease(run)


def disarm(run: NodeRun, _step: PlaybookStep) -> None:
    """Ends the guard of a run that changed nothing; after an install `put_back` has concluded it."""
    if run.armed and not run.installed:
        await_guard(run)
        reverted = run.node.revert(
            run=run.id, by=run.world.operator, why="ended before anything was installed"
        )
        if not reverted.by_guard:
            _conclude(
                run, run.previous, "reverted", {"restarted": False, "evidence": "nothing was installed"}
            )
    release_lease(run)
    run.armed = False


def release_lease(run: NodeRun) -> None:
    if run.keeper is not None:
        run.keeper.__exit__(None, None, None)
        run.keeper = None


def stage(run: NodeRun, _step: PlaybookStep, _timeout_s: float) -> None:
    goal = run.aim()
    if not goal.reused:
        run.node.stage(goal.release, goal.unit, base=run.known().sglang.package, files=goal.tree.files)
    if not goal.release.absent_unit:
        complaints = run.node.verify_unit(release=goal.id)
        if complaints:
            raise Failed(
                "unit",
                f"got {complaints[0]!r} from systemd-analyze verify, expected silence",
                hint="extra unit lines come from the unit that was found; mend them there or in the profile",
            )


def prove_attention(run: NodeRun, _step: PlaybookStep, timeout_s: float) -> None:
    for gate in selftest.gate(run, timeout_s):
        run.judged(gate)
        if not gate.passed:
            raise Failed("selftest", f"got {gate.evidence}, expected every row right")


def install(run: NodeRun, _step: PlaybookStep, _timeout_s: float) -> None:
    run.installed = True  # before the call: a lost answer may still have changed the node
    run.node.install(run.aim().id, run=run.id)


def put_back(run: NodeRun, _step: PlaybookStep) -> None:
    """The previous release in place, running and proven; raises Unproven otherwise."""
    if not run.installed:
        return
    why = "a later step failed"
    run.world.screen.step(run.name, "revert", f"release {run.previous} back in place")
    await_guard(run)
    run.cursor = run.node.observe("").cursor
    reverted = run.node.revert(run=run.id, by=run.world.operator, why=why)
    release = run.current
    if reverted.by_guard or release is None:
        if reverted.event != "reverted":
            raise Unproven("revert", f"the node's guard reverted and could not prove it: {reverted.evidence}")
        return
    if reverted.restarted:
        run.invocation = reverted.invocation_before
    try:
        evidence = prove_release(run, release, waits=reverted.restarted)
    except OpsError as error:
        _conclude(run, release.id, "unproven", {"evidence": str(error), "restarted": reverted.restarted})
        raise Unproven(
            "revert",
            f"release {release.id} is back in place, and could not be proven: {error}",
            hint=f"ddtree-ops logs --host {run.name}; ddtree-ops smoke --host {run.name}",
        ) from error
    _conclude(run, release.id, "reverted", {"evidence": evidence, "restarted": reverted.restarted})
    release_lease(run)
    run.armed = False


def prove_release(run: NodeRun, release: Release, *, waits: bool) -> str:
    """Shows that a release serves; what failed before this run already may fail the same way."""
    if release.absent_unit:
        return "there was no unit before, and there is none now"
    if not (run.found or run.known()).unit.running:
        return "the service did not run before, and does not run now"
    if waits:
        await_ready(run, release.profile, release.profile.load_timeout_s, {})
    verdict = smoke.verdict(run, release.profile, 600.0, brief=True)
    run.world.screen.gate(run.name, replace(verdict, name="smoke after the revert"))
    if not verdict.passed and (run.baseline is None or run.baseline.passed):
        raise Failed("smoke", verdict.evidence)
    return verdict.evidence if verdict.passed else f"as bad as before this run: {verdict.evidence}"


def restart(run: NodeRun, _step: PlaybookStep, _timeout_s: float) -> None:
    run.cursor = run.node.observe("").cursor
    run.restarted = True
    run.invocation = run.node.restart(run=run.id).invocation_before


def ready(run: NodeRun, _step: PlaybookStep, timeout_s: float) -> None:
    release = run.aim().release
    if release.absent_unit:
        run.judged(Gate(name="ready", passed=True, evidence="release 0 had no unit: the service is stopped"))
        return
    gate = await_ready(run, release.profile, timeout_s or release.profile.load_timeout_s, usual_phases(run))
    run.judged(gate)


def prove_output(run: NodeRun, _step: PlaybookStep, timeout_s: float) -> None:
    release = run.aim().release
    if release.absent_unit:
        return
    verdict = smoke.verdict(run, release.profile, timeout_s, brief=False, show=run.judged)
    run.judged(verdict)
    if not verdict.passed:
        raise Failed("smoke", f"got {verdict.evidence}", hint=_garbled_hint(run, release.profile))


def measure_load(run: NodeRun, _step: PlaybookStep, timeout_s: float) -> None:
    verdict = bench_gate(run, run.aim().release.profile, timeout_s)
    run.judged(verdict)
    if not verdict.passed:
        raise Failed("bench", f"got {verdict.evidence}, expected every request answered")


def examine_output(run: NodeRun, _step: PlaybookStep, timeout_s: float) -> None:
    verdict = examined_gate(run, run.aim().release.profile, timeout_s)
    run.judged(verdict)
    if not verdict.passed:
        raise Failed("examine", f"got {verdict.evidence}, expected every check right")


def confirm(run: NodeRun, _step: PlaybookStep, _timeout_s: float) -> None:
    if run.keeper is not None:
        run.keeper.check()
    goal = run.aim()
    _conclude(run, goal.id, "confirmed", _confirmation(run, goal))
    release_lease(run)
    run.armed = False
    run.installed = False


def command(run: NodeRun, step: PlaybookStep, timeout_s: float) -> None:
    _own(run, step.command, step.on, timeout_s)


def undo_command(run: NodeRun, step: PlaybookStep) -> None:
    if step.undo:
        _own(run, step.undo, step.on, step.timeout_s or 60.0)


STEPS: Mapping[str, Step] = {
    "lock": Step(apply=lock, undo=unlock),
    "probe": Step(apply=probe),
    "preflight": Step(apply=check),
    "plan": Step(apply=plan),
    "baseline": Step(apply=baseline),
    "guard": Step(apply=guard, undo=disarm),
    "stage": Step(apply=stage),
    "selftest": Step(apply=prove_attention),
    "install": Step(apply=install, undo=put_back),
    "restart": Step(apply=restart),
    "ready": Step(apply=ready),
    "smoke": Step(apply=prove_output),
    "bench": Step(apply=measure_load),
    "examine": Step(apply=examine_output),
    "confirm": Step(apply=confirm),
    "command": Step(apply=command, undo=undo_command),
}


def keep_found(run: NodeRun) -> None:
    """Writes the manifest of a state that no release of ours made, before anything changes it."""
    facts, current = run.known(), run.current
    if current is None or current.id in facts.releases:
        return
    run.node.found(current)
    detail: dict[str, object] = {"unit": facts.unit.path, "absent": current.absent_unit}
    if facts.sglang.sources is not Sources.STOCK:
        detail["sources"] = str(facts.sglang.sources)
    run.node.note(Entry(run=run.id, by=run.world.operator, event="found", release=current.id, detail=detail))


def _proof(run: NodeRun) -> Proof | None:
    release = run.current
    if release is None or release.absent_unit:
        return None
    profile = release.profile
    host = "127.0.0.1" if profile.host == "0.0.0.0" else profile.host
    return Proof(port=profile.port, host=host, text=PROOF_TEXT, deadline_s=float(profile.load_timeout_s))


def _conclude(run: NodeRun, release: str, event: str, detail: dict[str, object]) -> None:
    run.node.conclude(run=run.id, by=run.world.operator, release=release, event=event, detail=detail)  # type: ignore[arg-type]
    run.world.journal.append(
        run.name, Entry(run=run.id, by=run.world.operator, event=event, release=release, detail=detail)
    )


def _confirmation(run: NodeRun, goal: Goal) -> dict[str, object]:
    """What history shows of a confirmed release."""
    phases = next((phase_seconds(gate) for gate in run.gates if gate.name == "ready"), {})
    return {
        "playbook": run.playbook.name,
        "previous": run.previous,
        "reused": goal.reused,
        "changes": list(run.planned().changes),
        "gates": [
            {"name": gate.name, "passed": gate.passed, "evidence": gate.evidence} for gate in run.gates
        ],
        "phases": phases,
        "patches": [patch.name for patch in goal.release.patches],
    }


def usual_phases(run: NodeRun) -> dict[str, float]:
    """Seconds that each phase took at the node's last confirmed load."""
    for entry in reversed(run.node.history()):
        phases = entry.detail.get("phases")
        if entry.event == "confirmed" and isinstance(phases, dict):
            return {str(name): float(seconds) for name, seconds in phases.items()}
    return {}


def _garbled_hint(run: NodeRun, profile: Profile) -> str:
    applied = {patch.name for patch in run.aim().release.patches}
    if profile.budget is not None and not applied:
        return "this release runs unpatched: --patches verify-width,graph-width"
    return f"ddtree-ops isolate --host {run.name} tells which of patch, tree, graphs and drafter it is"


def _own(run: NodeRun, argv: tuple[str, ...], where: str, timeout_s: float) -> None:
    if where == "node":
        ran = run.link.run(argv, timeout_s=timeout_s)
        code, output = ran.code, ran.stderr or ran.stdout
    else:
        try:
            done = subprocess.run(argv, capture_output=True, timeout=timeout_s, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Failed("command", f"got {error}, expected {argv[0]} to run") from error
        code, output = done.returncode, done.stderr or done.stdout
    if code != 0:
        raise Failed(
            "command",
            f"got exit {code} of {' '.join(argv)}, expected 0: {output.decode(errors='replace')[-400:]}",
        )
