"""Keeps a guard from acting while its operator is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from ddtree_ops.model.errors import OpsError, Unreachable
from ddtree_ops.node.node import Node


class LeaseKeeper:
    """Renews guard and lock from a thread, every third of the lease, while its context lasts.

    A renewal that the link lost is tried again until the lease is over; one that the node refused
    ends the keeper at once. `check` raises either in the thread that asks.
    """

    def __init__(
        self, node: Node, *, run: str, lease_s: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._node, self._run, self._lease_s, self._monotonic = node, run, lease_s, monotonic
        self._over = threading.Event()
        self._lost: OpsError | None = None
        self._thread = threading.Thread(target=self._keep, name=f"lease of {node.name}", daemon=True)

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    @property
    def lost(self) -> OpsError | None:
        """What ended the lease; None while it holds."""
        return self._lost

    def check(self) -> None:
        """Raises what ended the lease, if something did."""
        if self._lost is not None:
            raise self._lost

    def _keep(self) -> None:
        renewed = self._monotonic()
        while not self._over.wait(self._lease_s / 3):
            asked = self._monotonic()
            try:
                self._node.renew(run=self._run, lease_s=self._lease_s)
                renewed = asked
            except Unreachable as error:
                if self._monotonic() - renewed > self._lease_s:
                    self._lost = error
                    return
            except OpsError as error:
                self._lost = error
                return
