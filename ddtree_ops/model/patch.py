"""Patched sources and findings about them, as the patching room hands them to the others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchedFile:
    """One file of a release tree that differs from its base; path like `sglang/srt/…`."""

    path: str
    before: str | None  # None: a new file
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchedTree:
    """The outcome of applying patch sets to one SGLang version."""

    sglang: str
    sets: tuple[str, ...]  # applied, in order
    not_needed: tuple[tuple[str, str], ...]  # (set, evidence)
    files: tuple[PatchedFile, ...]
