"""Many releases in one run: each brought up by the same playbook under one guard, and one way back.

The guard keeps what it goes back to while it is armed anew for each release, so whatever ends the run, a
SIGKILL included, the node returns to the release that it had when the run began.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile

from ddtree_ops.model.errors import Failed, OpsError, Refused, Unproven, Unreachable, UsageError
from ddtree_ops.model.plan import PlaybookStep
from ddtree_ops.model.profile import Profile
from ddtree_ops.model.release import Release
from ddtree_ops.node.values import Entry
from ddtree_ops.plan.plan import make_plan
from ddtree_ops.run import resolve
from ddtree_ops.run.context import NodeRun
from ddtree_ops.run.runner import apply_step, undo
from ddtree_ops.run.steps import STEPS, Step, keep_found

OPENING = ("lock", "probe")
JUDGING = ("selftest", "ready", "smoke", "bench", "examine")  # a failure of these is the release's own


class Unfit(Exception):
    """A release that did not come up well: a result, and no reason to end the run."""

    def __init__(self, step: str, error: OpsError) -> None:
        super().__init__(str(error))
        self.step, self.error = step, error


@dataclass(slots=True, kw_only=True)
class Trials:
    """Takes one node through releases; `own` are the steps that this run does in its own way."""

    run: NodeRun
    done: list[PlaybookStep]
    own: Mapping[str, Step] = field(default_factory=dict)
    _staged: dict[str, Release] = field(default_factory=dict)  # by fingerprint

    def open(self) -> Profile:
        """Locks and probes; returns the profile that the trials vary."""
        for step in takewhile(lambda step: step.step in OPENING, self.run.playbook.steps):
            self._do(step)
        facts = self.run.known()
        self._staged = {release.fingerprint: release for release in self.run.node.releases()}
        return resolve.wanted_profile(facts, self.run.asked, self.run.node.service)

    def bring_up(self, profile: Profile) -> None:
        """Deploys a profile by the playbook, up to its last step; Unfit when it is the release that fails.

        Nothing is put back then: the next release takes its place, or `go_back` ends the run.
        """
        asked = self.run.asked
        self.run.asked = replace(
            asked, profile=profile, budget=None, topk=None, cuda_graph=None, patches=None
        )
        self.run.gates.clear()
        for step in self.run.playbook.steps:
            if step.step == "lock" or (step.step == "baseline" and self.run.baseline is not None):
                continue  # holds for all of them
            try:
                self._do(step)
            except (Unreachable, Unproven):
                raise
            except (Refused, UsageError) as error:
                if step.step not in ("preflight", "plan"):
                    raise
                raise Unfit(step.step, error) from error
            except Failed as error:
                if step.step not in JUDGING:
                    raise
                self._remember(error)
                raise Unfit(step.step, error) from error

    def go_back(self) -> None:
        """Puts the node back at the release it had, proven; raises Unproven when that fails."""
        with self.run.world.interrupts.shield():
            problem = undo(self.run, [step for step in self.done if step.step in ("guard", "install")])
        if problem is not None:
            raise problem
        self.run.installed = self.run.armed = False

    def keep(self) -> None:
        """Confirms the release that is up: the node stays there."""
        self._do(PlaybookStep(step="confirm"))

    def _do(self, step: PlaybookStep) -> None:
        if step not in self.done:
            self.done.append(step)
        own = {"plan": Step(apply=self._aim), **self.own}
        apply_step(self.run, step, {**STEPS, **own})

    def _aim(self, run: NodeRun, _step: PlaybookStep, _timeout_s: float) -> None:
        """The release for the present profile: one that the node has already, where there is one."""
        if run.current is None:
            run.current = resolve.settle_current(run)
            keep_found(run)
        goal = resolve.new_goal(run, run.current)
        known = self._staged.get(goal.release.fingerprint)
        if known is not None and known.id != run.current.id:
            goal = replace(goal, release=known, reused=True)
        run.goal = goal
        self._staged[goal.release.fingerprint] = goal.release
        run.plan = make_plan(
            facts=run.known(), playbook=run.playbook, current=run.current, goal=goal, source_diff=""
        )

    def _remember(self, error: Failed) -> None:
        """Keeps in the node's journal why a release that stays there is no good."""
        detail: dict[str, object] = {"playbook": self.run.playbook.name, "error": str(error)}
        release = self.run.aim().id
        self.run.node.note(
            Entry(run=self.run.id, by=self.run.world.operator, event="failed", release=release, detail=detail)
        )
