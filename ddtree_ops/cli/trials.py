"""What the commands share that try several releases on one node."""

from __future__ import annotations

from pathlib import Path

from ddtree_ops.cli.options import asked_of
from ddtree_ops.cli.world import find_targets
from ddtree_ops.model.errors import UsageError
from ddtree_ops.model.host import Host
from ddtree_ops.run.context import Asked


def one_host(
    name: str,
    inventory: Path | None,
    profile: str | None,
    service: str | None,
    lease: float | None,
    asked: Asked,
) -> tuple[Host, Asked]:
    """The one node behind `--host`, with what was asked of it."""
    targets = find_targets([name], inventory)
    if len(targets) != 1:
        names = ", ".join(target.host.name for target in targets)
        raise UsageError("--host", f"got {names}, expected one node", hint="take them one after the other")
    return asked_of(targets[0], profile, service, lease, asked)


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """`4,8` as numbers above 0, each once."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UsageError(option, f"got {text!r}, expected whole numbers above 0, comma-separated")
    return tuple(dict.fromkeys(map(int, words)))
