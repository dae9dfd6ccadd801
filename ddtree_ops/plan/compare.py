"""What differs between what a node runs and what it shall run, in lines a person reads."""

from __future__ import annotations

from dataclasses import fields
from difflib import unified_diff

from ddtree_ops.model.facts import NodeFacts
from ddtree_ops.model.plan import Goal
from ddtree_ops.model.profile import Profile
from ddtree_ops.model.release import Release

UNSHOWN = {"name", "unit_lines", "patches"}


def goal_changes(facts: NodeFacts, current: Release, goal: Goal) -> tuple[str, ...]:
    """One line for each difference; empty when the node runs the goal already."""
    lines: list[str] = []
    if current.fingerprint != goal.release.fingerprint:
        lines += profile_changes(current.profile, goal.release.profile)
        lines += _sources(current, goal.release)
        lines = lines or ["unit or sources differ"]
    if not facts.unit.running:
        lines.append(f"service: {facts.unit.active} → active")
    return tuple(lines)


def profile_changes(old: Profile, new: Profile) -> list[str]:
    """`budget: 7 → 16`, one line a field."""
    return [
        f"{field.name}: {_shown(getattr(old, field.name))} → {_shown(getattr(new, field.name))}"
        for field in fields(Profile)
        if field.name not in UNSHOWN and getattr(old, field.name) != getattr(new, field.name)
    ]


def text_diff(old: str, new: str, old_name: str, new_name: str) -> str:
    """A unified diff; empty when the texts are equal."""
    lines = unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, lineterm="")
    return "\n".join(lines)


def _sources(old: Release, new: Release) -> list[str]:
    lines = []
    if old.sglang != new.sglang:
        lines.append(f"sglang: {old.sglang} → {new.sglang}")
    before = {patch.name: patch.digest for patch in old.patches}
    after = {patch.name: patch.digest for patch in new.patches}
    if before.keys() != after.keys():
        lines.append(f"patches: {', '.join(before) or 'none'} → {', '.join(after) or 'none'}")
    elif before != after:
        lines.append(f"patches: {', '.join(after)} with other content")
    return lines


def _shown(value: object) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        return " ".join("=".join(item) if isinstance(item, tuple) else str(item) for item in value)
    return str(value)
