"""Plans and playbooks: the ordered steps from the facts to the goal, as data."""

from __future__ import annotations

from dataclasses import dataclass

from ddtree_ops.model.patch import PatchedTree
from ddtree_ops.model.release import Release


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaybookStep:
    """One line of a playbook; `step` names one of ours, or `command` is the operator's own."""

    step: str
    timeout_s: float | None = None
    command: tuple[str, ...] = ()  # argv, for step "command"
    on: str = "node"  # where the command runs: "node" | "operator"
    undo: tuple[str, ...] | None = None  # argv; None: the step's own undo; (): none


@dataclass(frozen=True, slots=True, kw_only=True)
class Playbook:
    name: str
    summary: str
    steps: tuple[PlaybookStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What the node shall run: a manifest, its unit text and the files that differ from the base."""

    release: Release
    unit: str
    tree: PatchedTree
    reused: bool = False  # the release is already on the node

    @property
    def id(self) -> str:
        return self.release.id


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    step: PlaybookStep
    summary: str
    undo: str  # in words; "" when there is nothing to undo


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Steps with what they change, for one node; `changes` empty means the goal is reached."""

    node: str
    playbook: str
    current: str  # release ids, as is the goal's
    goal: Goal
    changes: tuple[str, ...]  # one line each: what differs between the node and the goal
    unit_diff: str
    source_diff: str
    steps: tuple[PlannedStep, ...]

    @property
    def unchanged(self) -> bool:
        return not self.changes
