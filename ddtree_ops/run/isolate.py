"""The controlled experiment on a node: one guarded trial after the other until one explanation is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ddtree_ops.measure.isolate import Conclusion, Setup, Trial, Verdict, next_trial
from ddtree_ops.model.errors import Refused
from ddtree_ops.model.host import Host
from ddtree_ops.model.plan import Playbook, PlaybookStep
from ddtree_ops.model.profile import Profile
from ddtree_ops.model.result import NodeResult, Outcome
from ddtree_ops.patching.apply import resolve as resolve_sets
from ddtree_ops.run import resolve
from ddtree_ops.run.context import Asked, NodeRun, World
from ddtree_ops.run.examine import Examined, examine
from ddtree_ops.run.models import BLOCK, drafter_block
from ddtree_ops.run.runner import run_on_node
from ddtree_ops.run.steps import Step
from ddtree_ops.run.trials import Trials, Unfit
from ddtree_ops.run.vary import needed_flags, setup_of, setup_profile


@dataclass(slots=True, kw_only=True)
class Isolation:
    """What an isolation has found out so far."""

    trials: list[Trial] = field(default_factory=list)
    conclusion: Conclusion | None = None
    block: int = BLOCK


def run_isolation(
    world: World, host: Host, asked: Asked, playbook: Playbook, show: Callable[[Trial], None]
) -> tuple[NodeResult, Isolation]:
    """Runs trials on the node until nothing more can be told apart; it ends at the release it had."""
    found = Isolation()

    def work(run: NodeRun, done: list[PlaybookStep]) -> Outcome:
        lab = _Laboratory(run=run, found=found)
        trials = Trials(run=run, done=done, own={"examine": Step(apply=lab.examine)})
        lab.prepare(trials.open())
        while isinstance(step := lab.next(), Setup):
            trial = lab.trial(trials, step)
            found.trials.append(trial)
            show(trial)
        found.conclusion = step
        trials.go_back()
        return Outcome.UNCHANGED

    return run_on_node(world, host, asked, playbook, work), found


@dataclass(slots=True, kw_only=True)
class _Laboratory:
    """The failing profile, and how a setup is made of it."""

    run: NodeRun
    found: Isolation
    base: Profile = field(init=False)
    failing: Setup = field(init=False)
    sets: tuple[str, ...] = ()
    seen: Examined | None = None

    def prepare(self, base: Profile) -> None:
        facts = self.run.known()
        if base.drafter is None:
            raise Refused(
                "isolate", "got a profile without a drafter, expected one that speculates",
                hint="name a profile with a drafter (--profile)",
            )  # fmt: skip
        self.base = base
        self.sets = resolve.choose_sets(base, facts.sglang.ddtree)
        included = {found.name for found in resolve_sets(self.sets, self.run.world.patches)}
        self.failing = setup_of(base, included)
        self.found.block = drafter_block(self.run, base.drafter)

    def next(self) -> Setup | Conclusion:
        known = self.run.known().sglang.known_flags
        return next_trial(
            self.failing,
            self.found.trials,
            block=self.found.block,
            possible=lambda setup: needed_flags(self.failing, setup) <= known,
        )

    def trial(self, trials: Trials, setup: Setup) -> Trial:
        number = len(self.found.trials) + 1
        self.run.world.screen.note(self.run.name, f"trial {number}: {setup.label}")
        self.seen = None
        try:
            trials.bring_up(setup_profile(self.base, self.failing, setup, self.sets, self.found.block))
        except Unfit as unfit:
            if unfit.step != "ready":
                raise unfit.error from unfit
            first = unfit.error.message.split("; its journal")[0].split(", expected")[0]
            return Trial(setup=setup, single=Verdict.CRASH, evidence=first.removeprefix("got "))
        seen = self.seen or Examined(single=Verdict.OK)
        return Trial(
            setup=setup,
            single=seen.single,
            batch=seen.batch,
            cached=seen.cached,
            accept_length=seen.accept_length,
            evidence=seen.evidence,
        )

    def examine(self, run: NodeRun, _step: PlaybookStep, timeout_s: float) -> None:
        self.seen = examine(run, run.aim().release.profile, timeout_s, block=self.found.block)
