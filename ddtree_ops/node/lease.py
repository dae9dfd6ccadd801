"""Keeps a guard from acting while its operator is there."""

from __future__ import annotations

from types import TracebackType

from ddtree_ops.node.node import Node


class LeaseKeeper:
    """Renews guard and lock from a thread, every third of the lease, while its context lasts."""

    def __init__(self, node: Node, *, run: str, lease_s: float) -> None:
        self._node, self._run, self._lease_s = node, run, lease_s

    def __enter__(self) -> LeaseKeeper:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError

    def check(self) -> None:
        """Raises what ended the lease, if something did."""
        raise NotImplementedError
