"""From a profile and a node's facts to the release that the node shall run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from jinja2 import Environment, StrictUndefined

from ddtree_ops.config.unit import quote_word
from ddtree_ops.model.facts import NodeFacts
from ddtree_ops.model.patch import PatchedTree
from ddtree_ops.model.plan import Goal
from ddtree_ops.model.profile import Profile
from ddtree_ops.model.release import FOUND, AppliedPatch, Release
from ddtree_ops.patching.apply import digest

ANY = "*"  # stands for the release's id while two goals are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What the engine room says of a profile on one node: words after the module, and environment."""

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()


def build_goal(
    *,
    facts: NodeFacts,
    profile: Profile,
    tree: PatchedTree,
    launch: Launch,
    template: str,
    release_id: str,
    by: str,
    created: str,
    accepted: tuple[str, ...] = (),
) -> Goal:
    """The release that this profile and tree make on this node, under the id given.

    `template` is the text of engine.service.j2. Raises jinja2.UndefinedError when the template
    names a value that does not exist.
    """
    anonymous = render_unit(template, facts, profile, launch, ANY)
    patches = tuple(AppliedPatch(name=name, digest=digest(tree)) for name in tree.sets)
    unit = render_unit(template, facts, profile, launch, release_id)
    release = Release(
        id=release_id,
        fingerprint=_sha256(anonymous, tree.sglang, digest(tree)),
        profile=profile,
        sglang=tree.sglang,
        patches=patches,
        unit_sha256=_sha256(unit),
        site=True,
        created=created,
        by=by,
        accepted_modified=accepted,
    )
    return Goal(release=release, unit=unit, tree=tree)


def found_release(facts: NodeFacts, profile: Profile, by: str, created: str) -> Release:
    """The manifest of the state that is on the node now: release 0, or a later hand-made change."""
    unit = facts.unit.text or ""
    return Release(
        id=next_id(facts.releases),
        fingerprint=_sha256("found", unit),
        profile=profile,
        sglang=facts.sglang.version or "unknown",
        patches=(),
        unit_sha256=_sha256(unit),
        site=False,
        created=created,
        by=by,
        accepted_modified=tuple(file.path for file in facts.sglang.modified),
        absent_unit=facts.unit.text is None,
    )


def drifted(facts: NodeFacts, current: Release | None) -> bool:
    """Whether the unit on the node is not the one that its current release wrote."""
    return current is None or _sha256(facts.unit.text or "") != current.unit_sha256


def next_id(releases: Iterable[str]) -> str:
    """One above the highest id; `0` on a node without releases."""
    numbers = [int(name) for name in releases if name.isdigit()]
    return str(max(numbers) + 1) if numbers else FOUND


def render_unit(template: str, facts: NodeFacts, profile: Profile, launch: Launch, release: str) -> str:
    """The unit text of one release; words are quoted here, once, for systemd."""
    argv = (f"{profile.venv}/bin/python", "-m", profile.launcher, *launch.argv)
    environment = dict((*profile.environment, *launch.environment))
    site = f"{facts.state_dir}/{profile.service}/releases/{release}/site"
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{site}:{inherited}" if inherited else site
    jinja = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    text = jinja.from_string(template).render(
        release=release,
        profile=profile,
        exec_start=" ".join(quote_word(word) for word in argv),
        environment=sorted(environment.items()),
        quoted=quote_word,
        lines=lambda section: [line for where, line in profile.unit_lines if where == section],
    )
    return text.rstrip("\n") + "\n"


def _sha256(*parts: str) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part.encode() + b"\0")
    return sha.hexdigest()
