"""After a lost link: back to the node, and what its guard made of the time in between."""

from __future__ import annotations

from contextlib import suppress

from ddtree_ops.model.errors import OpsError, Unproven, Unreachable
from ddtree_ops.node.lease import LeaseKeeper
from ddtree_ops.node.node import Node
from ddtree_ops.run.clock import Deadline
from ddtree_ops.run.context import NodeRun

RETRY_S = 2.0
REVERT_MARGIN_S = 60.0  # the guard's timer, its proof and a slow boot, on top of lease and load


def relink(run: NodeRun) -> None:
    """Connects anew, for as long as the node's lease lasts; raises Unreachable when that was in vain."""
    deadline = Deadline(run.world.clock, run.host.lease_s + REVERT_MARGIN_S)
    run.world.screen.warn(
        run.name,
        f"the link is gone; trying again for {deadline.seconds:.0f} s (the node's guard keeps watch)",
    )
    with suppress(OpsError):
        if run.keeper is not None:
            run.keeper.__exit__(None, None, None)
    run.keeper = None
    while True:
        try:
            run.link = run.links.enter_context(run.world.connect(run.host))
        except Unreachable:
            if deadline.left <= 0:
                raise
            run.world.clock.sleep(RETRY_S)
            continue
        run.node = Node(run.name, run.link, run.node.service)
        return


def resume_lease(run: NodeRun) -> None:
    """Takes an armed guard's lease up again; raises Refused when the guard has acted in the meantime."""
    if run.armed:
        run.node.renew(run=run.id, lease_s=run.host.lease_s)
        keep_lease(run)


def keep_lease(run: NodeRun) -> None:
    """Renews guard and lock from now on, until the lease is released or the link goes; twice is once."""
    if run.keeper is None:
        run.keeper = LeaseKeeper(run.node, run=run.id, lease_s=run.host.lease_s)
        run.keeper.__enter__()


def await_guard(run: NodeRun) -> None:
    """Returns once no guard is at work on the node; raises Unproven when it does not end."""
    load_s = run.current.profile.load_timeout_s if run.current is not None else 0.0
    deadline = Deadline(run.world.clock, load_s + run.host.lease_s + REVERT_MARGIN_S)
    while True:
        guard = run.node.probe(venv="").guard
        if guard is None or guard.state != "reverting":
            return
        run.world.screen.progress(run.name, f"the node's guard is putting release {guard.previous} back")
        if deadline.left <= 0:
            raise Unproven(
                "guard",
                f"got one still at work after {deadline.seconds:.0f} s, expected it to have ended",
                hint=f"ddtree-ops logs --host {run.name}",
            )
        run.world.clock.sleep(RETRY_S)
