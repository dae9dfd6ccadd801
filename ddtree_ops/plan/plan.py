"""The plan: a playbook's steps with the differences that they bring about."""

from __future__ import annotations

from ddtree_ops.model.facts import NodeFacts
from ddtree_ops.model.plan import Goal, Plan, PlannedStep, Playbook, PlaybookStep
from ddtree_ops.model.release import Release
from ddtree_ops.plan.compare import goal_changes, text_diff
from ddtree_ops.plan.steps import CATALOGUE


def make_plan(
    *, facts: NodeFacts, playbook: Playbook, current: Release, goal: Goal, source_diff: str
) -> Plan:
    """The plan that takes the node from `current` to `goal`."""
    here = current.id
    words = {"goal": goal.id, "current": here, "service": goal.release.profile.unit}
    return Plan(
        node=facts.node,
        playbook=playbook.name,
        current=here,
        goal=goal,
        changes=goal_changes(facts, current, goal),
        unit_diff=text_diff(facts.unit.text or "", goal.unit, f"release {here}", f"release {goal.id}"),
        source_diff=source_diff,
        steps=tuple(_planned(step, words) for step in playbook.steps),
    )


def _planned(step: PlaybookStep, words: dict[str, str]) -> PlannedStep:
    spec = CATALOGUE[step.step]
    summary = " ".join(step.command) if step.command else spec.summary.format(**words)
    undo = spec.undo.format(**words) if step.undo is None else " ".join(step.undo)
    return PlannedStep(step=step, summary=summary, undo=undo)
