"""One service on one node, as its operator handles it: each method is one agent verb."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter

from ddtree_ops.model.errors import Failed, OpsError, Refused, UsageError
from ddtree_ops.model.facts import Guard, Lock, NodeFacts
from ddtree_ops.model.patch import PatchedFile
from ddtree_ops.model.ports import Done, Shell
from ddtree_ops.model.profile import MODULE
from ddtree_ops.model.release import JournalEntry, Release
from ddtree_ops.node import facts as replies
from ddtree_ops.node.bundle import ARGV, TOO_OLD, decode_reply, encode_request
from ddtree_ops.node.values import Entry, Observation, Proof, Restarted, Reverted

T = TypeVar("T")

SERVICE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_.@-]{0,199}")
KINDS: dict[str, type[OpsError]] = {"refused": Refused, "failed": Failed, "usage": UsageError}
NOT_FOUND = 127  # what a shell exits with when there is no such command


class Node:
    """The verbs of one service; every one of them but `restart` may be repeated without effect."""

    def __init__(
        self,
        name: str,
        shell: Shell,
        service: str,
        *,
        timeout_s: float = 120.0,
        wall: Callable[[], float] = time.time,
    ) -> None:
        if not SERVICE_NAME.fullmatch(service):
            raise UsageError(
                "service",
                f"got {service!r}, expected a unit name of letters, digits and : _ . @ - alone",
                hint="correct the profile's service",
                node=name,
            )
        self.name, self.service = name, service
        self._shell, self._timeout_s, self._wall = shell, timeout_s, wall

    def probe(
        self,
        *,
        venv: str,
        launcher: str = MODULE,
        port: int | None = None,
        model: str = "",
        paths: Iterable[str] = (),
        read: Iterable[str] = (),
    ) -> NodeFacts:
        """Everything about the node and the service in one round trip.

        `paths` are asked for existence, `read` are sglang files (`sglang/srt/…`) whose text comes
        back, `model` is a directory whose config.json does. With a port, only its listeners are
        looked up; without, all.
        """
        asked_at = self._wall()
        reply = self._call(
            "probe",
            venv=venv,
            launcher=launcher,
            port=port,
            model=model,
            paths=list(paths),
            read=list(read),
        )
        answered_at = self._wall()
        return replies.node_facts(reply, node=self.name, asked_at=asked_at, answered_at=answered_at)

    def lock(self, *, who: str, run: str, ttl_s: float, steal: bool = False) -> Lock:
        """Takes the service's lock, or takes it again for the same run; Refused when another holds it.

        A lock whose lease ran out, or that is of an earlier boot, is taken over. Refused too while
        another run's guard has yet to put the node back.
        """
        lock = self._as(replies.LOCK, "lock", who=who, run=run, ttl_s=ttl_s, steal=steal)
        assert lock is not None
        return lock

    def unlock(self, *, run: str) -> None:
        """Gives the lock back; nothing happens when it is not this run's."""
        self._call("unlock", run=run)

    def force_unlock(self) -> Lock | None:
        """Removes whatever lock there is and returns it."""
        return self._as(replies.LOCK, "unlock", force=True)

    def found(self, manifest: Release) -> bool:
        """Keeps the present unit as the release that the manifest names; False when there is one already."""
        return self._as(replies.BOOL, "found", manifest=asdict(manifest))

    def stage(
        self, release: Release, unit: str, *, base: str | None = None, files: tuple[PatchedFile, ...] = ()
    ) -> bool:
        """Builds the release's directory beside and renames it; False when it was staged already.

        `base` is the directory that holds the installed `sglang/`; None: a release without a tree.
        Refused when another release has this id.
        """
        return self._as(
            replies.BOOL,
            "stage",
            manifest=asdict(release),
            unit=unit,
            base=base,
            files=[{"path": file.path, "text": file.after} for file in files],
        )

    def verify_unit(self, *, release: str = "", unit: str | None = None) -> tuple[str, ...]:
        """What `systemd-analyze verify` says about a staged release's unit, or a text; () is good."""
        return self._as(replies.LINES, "verify_unit", release=release, unit=unit)

    def arm(
        self, *, run: str, by: str, release: str, previous: str, lease_s: float, proof: Proof | None
    ) -> Guard:
        """Starts the dead-man switch: the unit file and links of now are what it goes back to.

        Armed again by the same run, for this or another release, it keeps what it goes back to.
        """
        guard = self._as(
            replies.GUARD,
            "arm",
            run=run,
            by=by,
            release=release,
            previous=previous,
            lease_s=lease_s,
            proof=None if proof is None else asdict(proof),
        )
        assert guard is not None
        return guard

    def renew(self, *, run: str, lease_s: float) -> Guard | None:
        """Renews guard and lock; Refused when either is lost. None: no guard armed."""
        return self._as(replies.GUARD, "renew", run=run, lease_s=lease_s)

    def install(self, release: str, *, run: str) -> bool:
        """Puts the release's unit in place; False when it was there already.

        Refused unless this run's guard is armed for the release.
        """
        return self._as(replies.BOOL, "install", release=release, run=run)

    def restart(self, *, run: str) -> Restarted:
        """Asks systemd for a restart and does not wait for it; stops a service without a unit."""
        return self._as(replies.RESTARTED, "restart", run=run)

    def api_key(self) -> str:
        """The key that the service's engine wants of its clients; "" where it wants none."""
        return self._as(replies.TEXT, "api_key") or ""

    def observe(self, cursor: str = "", *, port: int | None = None, tail: int = 0) -> Observation:
        """The unit and its journal since `cursor`; "" starts here, after the last `tail` lines."""
        return self._as(replies.OBSERVATION, "observe", cursor=cursor, port=port, tail=tail)

    def conclude(
        self,
        *,
        run: str,
        by: str,
        release: str,
        event: Literal["confirmed", "reverted", "unproven"],
        detail: dict[str, object] | None = None,
    ) -> None:
        """Writes how the run ended, then disarms the guard, in this order.

        Refused when the guard has acted: the node is not as this run believes.
        """
        self._call("conclude", run=run, by=by, release=release, event=event, detail=detail or {})

    def confirm(self, *, run: str, by: str, release: str, detail: dict[str, object] | None = None) -> None:
        """The release is good: the journal says so and the guard is disarmed."""
        self.conclude(run=run, by=by, release=release, event="confirmed", detail=detail)

    def revert(self, *, run: str, by: str, why: str) -> Reverted:
        """Puts back what was there when the guard was armed; restarts only what needs it.

        The guard stays armed, so that it finishes if we can't: `conclude` once the node is proven.
        """
        return self._as(replies.REVERTED, "revert", run=run, by=by, why=why)

    def note(self, *entries: Entry) -> None:
        """Appends to the service's journal, all or nothing."""
        self._call("note", entries=[asdict(entry) for entry in entries])

    def history(self) -> tuple[JournalEntry, ...]:
        """The service's journal, oldest first."""
        return self.past()[0]

    def releases(self) -> tuple[Release, ...]:
        """The manifests of all releases on the node, oldest first."""
        return self.past()[1]

    def past(self) -> tuple[tuple[JournalEntry, ...], tuple[Release, ...]]:
        """`history` and `releases` in one round trip."""
        reply = self._call("history")
        entries = self._parse(replies.ENTRIES, reply["entries"], "journal")
        return entries, self._parse(replies.RELEASES, reply["releases"], "releases")

    def unit_of(self, release: str | None = None) -> str | None:
        """The unit text of a release, or of now; None where there is no unit."""
        return self._as(replies.TEXT, "unit_of", release=release)

    def _as(self, adapter: TypeAdapter[T], verb: str, **request: object) -> T:
        return self._parse(adapter, self._call(verb, **request), verb)

    def _parse(self, adapter: TypeAdapter[T], value: object, what: str) -> T:
        try:
            return replies.parsed(adapter, value, what)
        except OpsError as error:
            raise error.on(self.name) from error.__cause__

    def _call(self, verb: str, **request: object) -> Any:
        """One verb, one round trip."""
        stdin = encode_request({"verb": verb, "service": self.service, **request})
        done = self._shell.run(ARGV, stdin=stdin, timeout_s=self._timeout_s)
        reply = decode_reply(done.stdout)
        if reply is None:
            raise self._silent(verb, done)
        if "error" in reply:
            error = reply["error"]
            raise KINDS.get(error["kind"], Failed)(
                error["what"], error["message"], hint=error["hint"], node=self.name
            )
        return reply.get("ok")

    def _silent(self, verb: str, done: Done) -> OpsError:
        """Why the agent did not answer, as far as its exit code tells."""
        if done.code == NOT_FOUND:
            message = "not on this node's PATH, expected Python 3.8 or later"
            return Refused("python3", message, hint="install it", node=self.name)
        if done.code == TOO_OLD:
            return Refused(
                "python3", "too old, expected Python 3.8 or later", hint="update it", node=self.name
            )
        said = done.stderr.decode(errors="replace").strip().splitlines()
        message = f"got exit {done.code} and no reply, expected one: {said[-1] if said else 'no word why'}"
        return Failed(f"agent {verb}", message, node=self.name)
