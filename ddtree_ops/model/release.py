"""A release: one immutable directory on a node, and what its journal says of it."""

from __future__ import annotations

from dataclasses import dataclass

from ddtree_ops.model.profile import Profile

FOUND = "0"  # the release that stands for the state found before the first deploy


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedPatch:
    name: str
    digest: str  # sha256 over the patched files that it yields


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The manifest kept as release.json beside the unit and the patched tree."""

    id: str
    fingerprint: str  # sha256 of unit text + patched files + sglang version: equal means same goal
    profile: Profile
    sglang: str
    patches: tuple[AppliedPatch, ...]
    unit_sha256: str
    site: bool  # False: runs from the venv's own site-packages
    created: str  # ISO 8601, UTC
    by: str  # who@where
    accepted_modified: tuple[str, ...] = ()  # files that --accept-modified let through
    absent_unit: bool = False  # release 0 of a node that had no unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One check's verdict, as results and journals show it."""

    name: str  # "ready" | "smoke" | "rescore" | …
    passed: bool
    evidence: str
    prompt: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One line of a service's journal.jsonl."""

    at: str  # ISO 8601, UTC, the node's clock
    run: str
    by: str  # who@where, or "guard"
    event: str  # found, deploy, staged, armed, installed, restarted, gate, confirmed, reverted, …
    release: str | None
    detail: dict[str, object]
