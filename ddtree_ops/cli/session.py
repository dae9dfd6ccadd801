"""One connection to one service, for the commands that only look."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ddtree_ops.cli.options import asked_of
from ddtree_ops.cli.world import connect, find_targets
from ddtree_ops.model.errors import OpsError
from ddtree_ops.model.host import Host
from ddtree_ops.node.node import Node
from ddtree_ops.node.ssh import SshLink
from ddtree_ops.run.context import Asked
from ddtree_ops.run.resolve import find_service


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    host: Host
    asked: Asked
    link: SshLink
    node: Node


def sessions(
    names: list[str], inventory: Path | None, *, profile: str | None = None, service: str | None = None
) -> Iterator[Session]:
    """A session with each named host in turn; errors carry the host's name."""
    for target in find_targets(names, inventory):
        host, asked = asked_of(target, profile, service, None, Asked())
        with session(host, asked) as opened:
            yield opened


@contextmanager
def session(host: Host, asked: Asked) -> Iterator[Session]:
    try:
        with connect(host) as link:
            node = Node(host.name, link, find_service(asked, host, link))
            yield Session(host=host, asked=asked, link=link, node=node)
    except OpsError as error:
        raise error.on(host.name) from error.__cause__
