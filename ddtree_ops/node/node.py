"""One service on one node, as its operator handles it: each method is one agent verb."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ddtree_ops.model.facts import Guard, Listener, Lock, NodeFacts, Unit
from ddtree_ops.model.patch import PatchedFile
from ddtree_ops.model.ports import Shell
from ddtree_ops.model.profile import MODULE
from ddtree_ops.model.release import JournalEntry, Release
from ddtree_ops.node.values import Entry, JournalLine, Proof, Restarted, Reverted


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One look at a service: its unit, what its journal said since the last look, its port."""

    unit: Unit
    lines: tuple[JournalLine, ...]
    cursor: str  # for the next look
    listeners: tuple[Listener, ...] = ()  # of the port asked about
    skipped: int = 0  # lines left out, when more came than one look carries


class Node:
    """The verbs of one service; every one of them may be repeated."""

    def __init__(self, name: str, shell: Shell, service: str, *, timeout_s: float = 60.0) -> None:
        self.name, self.service = name, service

    def probe(
        self,
        *,
        venv: str,
        launcher: str = MODULE,
        port: int | None = None,
        paths: Iterable[str] = (),
        read: Iterable[str] = (),
    ) -> NodeFacts:
        """Everything about the node and the service in one round trip.

        `paths` are asked for existence, `read` are sglang files (`sglang/srt/…`) whose text comes back.
        """
        raise NotImplementedError

    def lock(self, *, who: str, run: str, ttl_s: float, steal: bool = False) -> Lock:
        """Takes the service's lock, or takes it again for the same run; Refused when another holds it."""
        raise NotImplementedError

    def unlock(self, *, run: str) -> None:
        """Gives the lock back; nothing happens when it is not this run's."""
        raise NotImplementedError

    def force_unlock(self) -> Lock | None:
        """Removes whatever lock there is and returns it."""
        raise NotImplementedError

    def found(self, manifest: Release) -> bool:
        """Keeps the present unit as release 0; False when there is one already."""
        raise NotImplementedError

    def stage(
        self, release: Release, unit: str, *, base: str | None = None, files: tuple[PatchedFile, ...] = ()
    ) -> None:
        """Builds the release's directory beside and renames it into place.

        `base` is the directory that holds the installed `sglang/`; None: a release without a tree.
        """
        raise NotImplementedError

    def verify_unit(self, release: str) -> tuple[str, ...]:
        """What `systemd-analyze verify` has to say about a staged release's unit; () is good."""
        raise NotImplementedError

    def arm(self, *, run: str, release: str, previous: str, lease_s: float, proof: Proof | None) -> Guard:
        """Starts the dead-man switch: what is installed now is what it goes back to."""
        raise NotImplementedError

    def renew(self, *, run: str, lease_s: float) -> Guard | None:
        """Renews guard and lock; Refused when either is lost. None: no guard armed."""
        raise NotImplementedError

    def install(self, release: str, *, run: str) -> bool:
        """Puts the release's unit in place; False when it was there already. Needs an armed guard."""
        raise NotImplementedError

    def restart(self, *, run: str) -> Restarted:
        """Asks systemd for a restart and does not wait for it."""
        raise NotImplementedError

    def observe(self, cursor: str = "", *, port: int | None = None, tail: int = 0) -> Observation:
        """The unit and its journal since `cursor`; "" starts here, after the last `tail` lines."""
        raise NotImplementedError

    def conclude(
        self,
        *,
        run: str,
        by: str,
        release: str,
        event: Literal["confirmed", "reverted", "unproven"],
        detail: dict[str, object] | None = None,
    ) -> None:
        """Writes how the run ended, then disarms the guard, in this order."""
        raise NotImplementedError

    def confirm(self, *, run: str, by: str, release: str, detail: dict[str, object] | None = None) -> None:
        """The release is good: the journal says so and the guard is disarmed."""
        self.conclude(run=run, by=by, release=release, event="confirmed", detail=detail)

    def revert(self, *, run: str, by: str, why: str) -> Reverted:
        """Puts back what was there when the guard was armed; restarts only what needs it."""
        raise NotImplementedError

    def note(self, *entries: Entry) -> None:
        """Appends to the service's journal."""
        raise NotImplementedError

    def history(self) -> tuple[JournalEntry, ...]:
        """The service's journal, oldest first."""
        raise NotImplementedError

    def releases(self) -> tuple[Release, ...]:
        """The manifests of all releases on the node, oldest first."""
        raise NotImplementedError

    def unit_of(self, release: str) -> str | None:
        """The unit text of one release; None: release 0 of a node that had no unit."""
        raise NotImplementedError
