"""`adopt` and `unlock`: taking a node's present state in hand, and a dead run's lock away."""

from __future__ import annotations

import sys
import uuid
from dataclasses import asdict
from typing import Annotated

import typer
from ruamel.yaml import YAML

from ddtree_ops.cli import options as opt
from ddtree_ops.cli.output import print_json
from ddtree_ops.cli.session import Session, sessions
from ddtree_ops.cli.world import operator
from ddtree_ops.model.errors import Refused, UsageError
from ddtree_ops.model.profile import Profile
from ddtree_ops.node.values import Entry
from ddtree_ops.plan.adopt import adopt as adopt_unit
from ddtree_ops.plan.goal import found_release
from ddtree_ops.run.clock import SystemClock

LOCK_TTL_S = 120.0


def adopt(
    host: opt.Hosts,
    service: opt.Service = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the profile that is printed.")] = None,
    inventory: opt.InventoryFile = None,
    json: opt.Json = False,
) -> None:
    """Keep a hand-written unit as release 0 and print it as a profile; nothing is restarted."""
    rows = [_adopted(one, name) for one in sessions(host, inventory, service=service)]
    if json:
        nodes = [
            {"node": node, "release": "0", "new": new, "profile": asdict(profile)}
            for node, new, profile in rows
        ]
        print_json({"nodes": nodes, "exit_code": 0})
        return
    for node, new, profile in rows:
        print(
            f"{node}: {'kept as release 0' if new else 'release 0 is there already'}; as a profile:",
            file=sys.stderr,
        )
        YAML().dump({"profiles": {profile.name: profile_keys(profile)}}, sys.stdout)
        for section, line in profile.unit_lines:
            print(
                f"{node}: [{section}] {line}: carried over from unit to unit, in no profile key",
                file=sys.stderr,
            )


def unlock(
    host: opt.Hosts,
    service: opt.Service = None,
    force: Annotated[bool, typer.Option("--force", help="Also a lock whose run may still be alive.")] = False,
    inventory: opt.InventoryFile = None,
    json: opt.Json = False,
) -> None:
    """Remove a lock that a dead run left behind."""
    rows = [(one.host.name, _unlocked(one, force)) for one in sessions(host, inventory, service=service)]
    if json:
        print_json({"nodes": [{"node": node, "removed": who} for node, who in rows], "exit_code": 0})
        return
    for node, who in rows:
        print(f"{node}: {f'removed the lock of {who}' if who else 'there was no lock'}", file=sys.stderr)


def profile_keys(profile: Profile) -> dict[str, object]:
    """A profile as the inventory writes it: keys that differ from their defaults."""
    bare = Profile(name="", service="", venv="", model="", port=0)
    keys: dict[str, object] = {}
    for key, value in asdict(profile).items():
        if key in ("name", "unit_lines") or value == getattr(bare, key):
            continue
        pairs = key in ("environment", "limits")
        keys[key] = dict(value) if pairs else (list(value) if isinstance(value, tuple) else value)
    return keys


def _adopted(one: Session, name: str | None) -> tuple[str, bool, Profile]:
    facts = one.node.probe(venv="")
    if facts.unit.text is None:
        raise Refused(
            f"{one.node.service}.service", "got no such unit, expected one to adopt", node=one.host.name,
            hint=f"ddtree-ops probe --host {one.host.name} lists the units that run SGLang",
        )  # fmt: skip
    profile = adopt_unit(facts.unit.text, one.node.service, name=name or f"{one.node.service}-found")
    if facts.releases:
        return one.host.name, False, profile
    run, who = uuid.uuid4().hex[:12], operator()
    one.node.lock(who=who, run=run, ttl_s=LOCK_TTL_S)
    try:
        release = found_release(facts, profile, who, SystemClock().utc())
        new = one.node.found(release)
        if new:
            one.node.note(Entry(run=run, by=who, event="found", release=release.id, detail={"adopted": True}))
    finally:
        one.node.unlock(run=run)
    return one.host.name, new, profile


def _unlocked(one: Session, force: bool) -> str | None:
    """Who held the lock that is gone now; with force also wakes a guard that a dead run left armed."""
    facts = one.node.probe(venv="")
    lock = facts.lock
    if lock is None and not (force and facts.guard):
        return None
    if lock is not None and lock.expires_in_s > 0 and not force:
        raise UsageError(
            "lock",
            f"got one of {lock.who} since {lock.since}, expected a dead run's",
            hint=f"it lapses by itself in {lock.expires_in_s:.0f} s; --force takes it away now",
            node=one.host.name,
        )
    removed = one.node.force_unlock()
    if lock is not None:
        one.node.note(Entry(run=lock.run, by=operator(), event="unlocked", detail={"of": lock.who}))
    return removed.who if removed else None
