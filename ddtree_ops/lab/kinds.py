"""Opens a lab by its kind."""

from __future__ import annotations

from pathlib import Path

from ddtree_ops.lab.hosts import Kind, Lab, state_directory
from ddtree_ops.lab.image import cache_directory


def open_lab(kind: Kind, state: Path | None = None, cache: Path | None = None) -> Lab:
    """The lab of that kind, up or not; its state and cache are the user's own unless given."""
    place, built = state or state_directory(kind), cache or cache_directory()
    if kind is Kind.EMBEDDED:
        from ddtree_ops.lab.embedded.lab import EmbeddedLab  # brings asyncssh: a third of a command's start

        return EmbeddedLab(place, built)
    from ddtree_ops.lab.systemd.lab import SystemdLab

    return SystemdLab(place, built)
