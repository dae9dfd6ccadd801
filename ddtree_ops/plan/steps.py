"""The steps that a playbook may name: what each needs before it, its deadline and its undo in words."""

from __future__ import annotations

from dataclasses import dataclass

from ddtree_ops.model.errors import UsageError
from ddtree_ops.model.plan import Playbook


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """`needs` are steps that must come earlier; `timeout_s` holds unless the playbook says otherwise."""

    name: str
    summary: str  # formatted with goal, current, profile, node
    needs: tuple[str, ...] = ()
    timeout_s: float = 60.0
    undo: str = ""


SPECS = (
    StepSpec(name="lock", summary="take the lock of {service}", undo="release the lock"),
    StepSpec(name="probe", summary="read the node's facts in one round trip", timeout_s=120),
    StepSpec(name="preflight", summary="check that the goal can work here", needs=("probe",)),
    StepSpec(name="plan", summary="show the plan, ask", needs=("probe",), timeout_s=3600),
    StepSpec(
        name="baseline",
        summary="smoke what runs now, to know what `back as it was` means",
        needs=("plan",),
        timeout_s=600,
    ),
    StepSpec(
        name="guard",
        summary="arm the node's own dead-man switch: back to release {current} unless confirmed",
        needs=("lock", "plan"),
        undo="disarm it",
    ),
    StepSpec(
        name="stage",
        summary="build release {goal}: patched tree, unit, manifest",
        needs=("plan",),
        timeout_s=300,
        undo="none: the release stays on the node for study",
    ),
    StepSpec(
        name="selftest",
        summary="prove the staged attention path on the node's own GPU",
        needs=("stage",),
        timeout_s=300,
    ),
    StepSpec(
        name="install",
        summary="put release {goal}'s unit in place, daemon-reload",
        needs=("guard", "stage"),
        undo="release {current} back in place, restarted, ready and smoked",
    ),
    StepSpec(name="restart", summary="restart {service}", needs=("install",), timeout_s=120),
    StepSpec(
        name="ready",
        summary="wait for the load's phases and a real completion",
        needs=("restart",),
        timeout_s=0,  # 0: the profile's load_timeout_s
    ),
    StepSpec(
        name="smoke",
        summary="prove the output: prompts, coding tasks, re-scoring",
        needs=("ready",),
        timeout_s=900,
    ),
    StepSpec(
        name="bench",
        summary="measure release {goal} under load",
        needs=("ready",),
        timeout_s=3600,
    ),
    StepSpec(
        name="examine",
        summary="ask release {goal}: one request alone, after a prefix hit, and among others",
        needs=("ready",),
        timeout_s=900,
    ),
    StepSpec(name="confirm", summary="confirm release {goal}, disarm the guard", needs=("install",)),
    StepSpec(name="command", summary="run the operator's own command", timeout_s=300),
)
CATALOGUE = {spec.name: spec for spec in SPECS}
NAMES = tuple(spec.name for spec in SPECS if spec.name != "command")


def check_order(playbook: Playbook, file: str) -> None:
    """Raises UsageError when a step comes before, or without, one that it needs."""
    seen: set[str] = set()
    for number, step in enumerate(playbook.steps, 1):
        missing = [need for need in CATALOGUE[step.step].needs if need not in seen]
        if missing:
            raise UsageError(
                f"{file}: steps.{number - 1}",
                f"got {step.step} before {missing[0]}, expected {missing[0]} earlier in the playbook",
            )
        seen.add(step.step)
