"""Opens a lab by its kind."""

from __future__ import annotations

from pathlib import Path

from ddtree_ops.lab.embedded.lab import EmbeddedLab
from ddtree_ops.lab.hosts import Kind, Lab, state_directory
from ddtree_ops.lab.image import cache_directory
from ddtree_ops.lab.systemd.lab import SystemdLab


def open_lab(kind: Kind, state: Path | None = None, cache: Path | None = None) -> Lab:
    """The lab of that kind, up or not; its state and cache are the user's own unless given."""
    make = {Kind.EMBEDDED: EmbeddedLab, Kind.SYSTEMD: SystemdLab}[kind]
    return make(state or state_directory(kind), cache or cache_directory())
