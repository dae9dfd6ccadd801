"""The lease keeper against a node that answers, goes silent, or refuses."""

from __future__ import annotations

import json
import threading
import time
import zlib

import pytest

from ddtree_ops.model.errors import Refused, Unreachable
from ddtree_ops.node.bundle import MARK
from ddtree_ops.node.lease import LeaseKeeper
from ddtree_ops.node.node import Node
from ddtree_ops.node.ssh import Ran

REFUSAL = {
    "error": {"what": "guard", "message": "guard has ended this run: reverted", "hint": "", "kind": "refused"}
}


class Shell:
    """Answers renewals until told otherwise, and counts them."""

    def __init__(self) -> None:
        self.reply: dict[str, object] | None = {"ok": None}
        self.asked = threading.Semaphore(0)

    def run(self, argv: tuple[str, ...], *, stdin: bytes = b"", timeout_s: float) -> Ran:
        self.asked.release()
        if self.reply is None:
            raise Unreachable("command", "the link was lost", node="n1")
        return Ran(code=0, stdout=MARK + zlib.compress(json.dumps(self.reply).encode()), stderr=b"")


def keeper(shell: Shell, lease_s: float = 0.3) -> LeaseKeeper:
    return LeaseKeeper(Node("n1", shell, "svc"), run="r1", lease_s=lease_s)


def until_lost(kept: LeaseKeeper) -> None:
    deadline = time.monotonic() + 20
    while kept.lost is None and time.monotonic() < deadline:
        time.sleep(0.02)


def test_it_renews_again_and_again_and_ends_with_its_context() -> None:
    shell = Shell()
    with keeper(shell) as kept:
        assert all(shell.asked.acquire(timeout=20) for _ in range(3))
        kept.check()
    assert not any(thread.name == "lease of n1" for thread in threading.enumerate())


def test_a_refusal_ends_it_at_once_and_check_raises_it() -> None:
    shell = Shell()
    shell.reply = REFUSAL
    with keeper(shell) as kept:
        until_lost(kept)
        with pytest.raises(Refused, match="guard has ended this run"):
            kept.check()


def test_a_lost_link_is_tried_again_until_the_lease_is_over() -> None:
    shell = Shell()
    shell.reply = None
    with keeper(shell) as kept:
        assert shell.asked.acquire(timeout=20)
        until_lost(kept)
        with pytest.raises(Unreachable):
            kept.check()
    assert shell.asked.acquire(timeout=0)  # it had been tried more than once
