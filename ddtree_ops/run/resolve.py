"""From what was asked and what the node is to the profile, the patched tree and the goal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from ddtree_ops.engine.flags import engine_argv, engine_environment
from ddtree_ops.model.errors import OpsError, Refused, UsageError
from ddtree_ops.model.facts import DdtreeFlags, NodeFacts, Sources
from ddtree_ops.model.host import Host
from ddtree_ops.model.patch import PatchedTree
from ddtree_ops.model.plan import Goal
from ddtree_ops.model.profile import Profile
from ddtree_ops.model.release import Release
from ddtree_ops.node.node import Node
from ddtree_ops.node.ssh import SshLink
from ddtree_ops.patching.apply import apply_sets, needed_files, resolve
from ddtree_ops.patching.recognise import State, recognise_node
from ddtree_ops.plan.adopt import adopt, carried
from ddtree_ops.plan.goal import Launch, build_goal, drifted, found_release, next_id
from ddtree_ops.run.context import Asked, NodeRun

RELEASE = TypeAdapter(Release)
OUR_FLAGS = ("--speculative-ddtree-budget", "--speculative-ddtree-topk-cap")
CANDIDATES = ("ddtree-engine", "verify-width", "graph-width")  # what a goal may need by itself


def probe(node: Node, asked: Asked, patches: Path) -> NodeFacts:
    """The node's facts, with the texts of all files that the chosen patch sets may edit.

    One round trip with a profile; two without, since the unit has to say first where its venv is.
    """
    profile = asked.profile
    if profile is None:
        facts = node.probe(venv="")
        if facts.manifest is None and facts.unit.text is None:
            return facts
        profile = running_profile(facts, node.service)
    sets = asked.patches if asked.patches is not None else profile.patches
    candidates = sets if sets is not None else CANDIDATES
    facts = node.probe(
        venv=profile.venv,
        launcher=profile.launcher,
        port=profile.port,
        model=profile.model,
        paths=tuple(path for path in (profile.model, profile.drafter) if path and path.startswith("/")),
        read=needed_files(candidates, patches),
    )
    return _recognised(facts, patches)


def _recognised(facts: NodeFacts, patches: Path) -> NodeFacts:
    """The facts with sources that our own sets explain called patched; the node knows no patch sets."""
    if facts.sglang.sources is not Sources.MODIFIED:
        return facts
    record = {file.path: file.recorded for file in facts.sglang.modified if file.recorded}
    if recognise_node(facts.sglang, record, patches).state is not State.PATCHED:
        return facts
    return replace(facts, sglang=replace(facts.sglang, sources=Sources.PATCHED))


def current_release(facts: NodeFacts) -> Release | None:
    """The manifest of the release that the node's `current` link names."""
    return None if facts.manifest is None else RELEASE.validate_python(facts.manifest)


def running_profile(facts: NodeFacts, service: str) -> Profile:
    """What the node runs now: its current release's profile, or the adopted unit."""
    release = current_release(facts)
    if release is not None and not drifted(facts, release):
        return release.profile
    if facts.unit.text is None:
        engines = ", ".join(unit.name for unit in facts.engines) or "none"
        raise Refused(
            f"{service}.service",
            f"got no such unit and no profile, expected one of them (units that run SGLang: {engines})",
            hint="name a profile (--profile), or the unit (--service)",
            node=facts.node,
        )
    return adopt(facts.unit.text, service, name=f"{service}-found")


def wanted_profile(facts: NodeFacts, asked: Asked, service: str) -> Profile:
    """The profile asked for, with the command line's overrides."""
    if asked.profile is None:
        profile = running_profile(facts, service)
    else:
        profile = carried(replace(asked.profile, service=service), _adopted(facts, service))
    overrides: Mapping[str, object] = {
        key: value
        for key, value in (
            ("budget", asked.budget),
            ("topk", asked.topk),
            ("cuda_graph", asked.cuda_graph),
            ("patches", asked.patches),
        )
        if value is not None
    }
    return replace(profile, **overrides)  # type: ignore[arg-type]


def choose_sets(profile: Profile, ddtree: DdtreeFlags) -> tuple[str, ...]:
    """The profile's patch sets, or what its goal needs on an SGLang with these flags."""
    if profile.patches is not None:
        return profile.patches
    if profile.budget is None:
        return ()
    if ddtree is DdtreeFlags.NONE:
        return ("ddtree-engine",)
    return ("verify-width", "graph-width") if profile.cuda_graph else ("verify-width",)


def patched_tree(facts: NodeFacts, sets: tuple[str, ...], patches: Path) -> PatchedTree:
    """The chosen sets applied to the node's own files; UsageError or Refused when they do not fit."""
    version = facts.sglang.version or "unknown"
    texts = {file.path: file.text for file in facts.sglang.files}
    if not sets:
        return PatchedTree(sglang=version, sets=(), not_needed=(), files=())
    return apply_sets(sets, patches, texts.get, version)


def launch_of(profile: Profile, facts: NodeFacts, provides: frozenset[str]) -> Launch:
    """The engine's words and environment for this node, patched flags included."""
    ours = "ddtree-flags" in provides
    known = facts.sglang.known_flags | (frozenset(OUR_FLAGS) if ours else frozenset())
    ddtree = DdtreeFlags.OURS if ours else facts.sglang.ddtree
    return Launch(argv=engine_argv(profile, known, ddtree), environment=engine_environment(profile, ddtree))


def provided_by(sets: tuple[str, ...], patches: Path) -> frozenset[str]:
    """What the sets, and those that they include, add to SGLang for a profile to rely on."""
    return frozenset(name for found in resolve(sets, patches) for name in found.provides)


def settle_current(run: NodeRun) -> Release:
    """The release that the node runs; a unit that no release wrote becomes a new, found one.

    The found one's manifest is not written here: nothing is touched before the plan has been accepted.
    """
    facts = run.known()
    current = current_release(facts)
    if current is not None and not drifted(facts, current):
        return current
    for release in reversed(run.node.releases() if facts.releases else ()):
        if not release.absent_unit and not drifted(facts, release):
            return release
    profile = _adopted(facts, run.node.service) or run.asked.profile
    if profile is None:
        raise Refused("profile", "got none, expected --profile: the node has no unit", node=run.name)
    return found_release(facts, profile, run.world.operator, run.world.clock.utc())


def goal(run: NodeRun, current: Release) -> Goal:
    """The release that this run takes the node to."""
    return earlier_goal(run, current) if run.asked.rollback else new_goal(run, current)


def new_goal(run: NodeRun, current: Release) -> Goal:
    """The new release that the wanted profile makes on this node."""
    facts = run.known()
    profile = wanted_profile(facts, run.asked, run.node.service)
    sets = choose_sets(profile, facts.sglang.ddtree)
    tree = patched_tree(facts, sets, run.world.patches)
    template = (run.world.templates / "engine.service.j2").read_text(encoding="utf-8")
    return build_goal(
        facts=facts,
        profile=profile,
        tree=tree,
        launch=launch_of(profile, facts, provided_by(sets, run.world.patches)),
        template=template,
        release_id=next_id((*facts.releases, current.id)),
        by=run.world.operator,
        created=run.world.clock.utc(),
        accepted=tuple(file.path for file in facts.sglang.modified),
    )


def earlier_goal(run: NodeRun, current: Release) -> Goal:
    """The release that a rollback goes to: the one asked for, or the last one confirmed before this."""
    releases = {release.id: release for release in run.node.releases()}
    target = run.asked.to or _confirmed_before(run, current.id, tuple(releases))
    if target not in releases:
        raise UsageError(
            "--to",
            f"got {target}, expected one of: {', '.join(releases) or 'none'}",
            hint=f"ddtree-ops history --host {run.name}",
            node=run.name,
        )
    release = releases[target]
    tree = PatchedTree(sglang=release.sglang, sets=(), not_needed=(), files=())
    return Goal(release=release, unit=run.node.unit_of(target) or "", tree=tree, reused=True)


def find_service(asked: Asked, host: Host, link: SshLink) -> str:
    """The service's name as said, or the node's only unit that runs SGLang (one round trip more).

    Raises UsageError for a name that systemd, or a shell, could misread, and when it is not clear.
    """
    named = asked.service or host.service or (asked.profile.service if asked.profile else None)
    if named is None:
        engines = Node(host.name, link, "sglang").probe(venv="").engines
        if len(engines) != 1:
            seen = ", ".join(unit.name for unit in engines) or "none"
            raise UsageError(
                "service",
                f"got units that run SGLang: {seen}, expected exactly one, or a name",
                hint="--service NAME, or `service` in the inventory",
                node=host.name,
            )
        named = engines[0].name
    name = named.removesuffix(".service")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9:_.@-]*", name):
        raise UsageError("service", f"got {named!r}, expected a unit name of letters, digits and :_.@-")
    return name


def _adopted(facts: NodeFacts, service: str) -> Profile | None:
    if facts.unit.text is None:
        return None
    try:
        return adopt(facts.unit.text, service, name=f"{service}-found")
    except OpsError:
        return None  # not an engine's command line as we know it: kept as text, not understood


def _confirmed_before(run: NodeRun, current: str, known: tuple[str, ...]) -> str:
    """The release that was current when `current` was first deployed; else the found one before it."""
    for entry in run.node.history():
        first = entry.event == "confirmed" and entry.release == current and not entry.detail.get("reused")
        if first and "previous" in entry.detail:
            return str(entry.detail["previous"])
    earlier = [name for name in known if name.isdigit() and int(name) < int(current)]
    if not earlier:
        raise Refused(
            "rollback",
            f"got release {current}, which has no earlier one, expected a deploy before it",
            hint=f"ddtree-ops history --host {run.name}; --to RELEASE goes to any of them",
            node=run.name,
        )
    return earlier[0]
