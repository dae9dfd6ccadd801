"""What a run carries along: the world it acts in, what was asked, and what has happened so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ddtree_ops.engine.http import EngineClient
from ddtree_ops.engine.words import flag_value
from ddtree_ops.model.errors import OpsError
from ddtree_ops.model.facts import NodeFacts
from ddtree_ops.model.host import Host
from ddtree_ops.model.plan import Goal, Plan, Playbook
from ddtree_ops.model.ports import Clock
from ddtree_ops.model.profile import Profile
from ddtree_ops.model.release import Gate, Release
from ddtree_ops.node.lease import LeaseKeeper
from ddtree_ops.node.node import Node
from ddtree_ops.node.ssh import SshLink
from ddtree_ops.run.interrupts import Interrupts
from ddtree_ops.run.journal import LocalJournal
from ddtree_ops.run.screen import Screen


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything outside a run: clock, screen, shipped files, who is at the keyboard."""

    clock: Clock
    screen: Screen
    templates: Path
    playbooks: Path
    patches: Path
    operator: str  # "who@where"
    journal: LocalJournal
    interrupts: Interrupts
    connect: Callable[[Host], AbstractContextManager[SshLink]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the operator asked for; None leaves a value to the profile."""

    profile: Profile | None = None  # the inventory's; None: what the node runs now
    service: str | None = None
    budget: int | None = None
    topk: int | None = None
    cuda_graph: bool | None = None
    patches: tuple[str, ...] | None = None
    accept_modified: bool = False
    dry_run: bool = False
    rollback: bool = False  # the goal is a release that is on the node already
    to: str | None = None  # rollback: which; None: the one confirmed before the current


@dataclass(slots=True, kw_only=True)
class NodeRun:
    """One run on one node; steps read it and write what they learn into it."""

    world: World
    host: Host
    asked: Asked
    playbook: Playbook
    links: ExitStack  # closes every link of the run
    link: SshLink
    node: Node
    id: str
    facts: NodeFacts | None = None
    found: NodeFacts | None = None  # the facts as the run began; a run that tries releases probes again
    current: Release | None = None  # what the node runs, as release; found ones included
    goal: Goal | None = None
    plan: Plan | None = None
    baseline: Gate | None = None  # whether what ran before was good
    gates: list[Gate] = field(default_factory=list)
    keeper: LeaseKeeper | None = None
    cursor: str = ""  # of the unit's journal, just before the restart
    invocation: str = ""  # of the process that ran before the restart
    armed: bool = False
    installed: bool = False
    restarted: bool = False

    @property
    def name(self) -> str:
        return self.host.name

    def known(self) -> NodeFacts:
        """The facts; an error that names the step a playbook left out when there are none."""
        if self.facts is None:
            raise OpsError(
                "playbook", "got a step that needs facts, expected `probe` before it", node=self.name
            )
        return self.facts

    def aim(self) -> Goal:
        """The goal, likewise."""
        if self.goal is None:
            raise OpsError(
                "playbook", "got a step that needs a goal, expected `plan` before it", node=self.name
            )
        return self.goal

    def planned(self) -> Plan:
        if self.plan is None:
            raise OpsError(
                "playbook", "got a step that needs a plan, expected `plan` before it", node=self.name
            )
        return self.plan

    @property
    def previous(self) -> str:
        """The release that an undo goes back to."""
        if self.current is None:
            raise OpsError(
                "playbook", "got no release to go back to, expected `plan` before it", node=self.name
            )
        return self.current.id

    def judged(self, gate: Gate) -> None:
        """Keeps and shows a gate's verdict."""
        self.gates.append(gate)
        self.world.screen.gate(self.name, gate)

    @contextmanager
    def engine(self, profile: Profile) -> Iterator[EngineClient]:
        """A client of the node's engine, through the tunnel."""
        with self.tunnel(profile) as port, self.client(profile, port) as client:
            yield client

    def tunnel(self, profile: Profile) -> AbstractContextManager[int]:
        """A local port that leads to the node's engine."""
        host = "127.0.0.1" if profile.host in ("0.0.0.0", "::") else profile.host
        return self.link.forward(profile.port, host)

    def client(self, profile: Profile, port: int) -> EngineClient:
        """A client of the engine behind a tunnel's port."""
        return EngineClient(
            base_url=f"http://127.0.0.1:{port}",
            clock=self.world.clock,
            node=self.name,
            api_key=self.api_key(profile),
        )

    def api_key(self, profile: Profile) -> str | None:
        """What the node's engine wants of its clients, asked for where the profile says that it wants one."""
        keyed = flag_value(profile.extra_flags, "--api-key") is not None
        return self.node.api_key() or None if keyed else None
