"""Several nodes, one after the other: the first one is the canary of the rest."""

from __future__ import annotations

from ddtree_ops.model.errors import Refused
from ddtree_ops.model.host import Host
from ddtree_ops.model.plan import Playbook
from ddtree_ops.model.result import NodeResult, Outcome
from ddtree_ops.run.context import Asked, World
from ddtree_ops.run.runner import run_playbook


def run_fleet(
    world: World, hosts: tuple[tuple[Host, Asked], ...], playbook: Playbook, *, keep_going: bool = False
) -> tuple[NodeResult, ...]:
    """Runs the playbook on each node in order; stops at the first that fails unless told otherwise."""
    results: list[NodeResult] = []
    failed: str | None = None
    for host, asked in hosts:
        if failed is not None and not keep_going:
            results.append(_spared(host, failed))
            continue
        result = run_playbook(world, host, asked, playbook)
        results.append(result)
        if result.exit_code != 0:
            failed = host.name
    return tuple(results)


def _spared(host: Host, failed: str) -> NodeResult:
    error = Refused(
        "fleet",
        f"got a failure on {failed}, expected it to go well before this node is touched",
        hint="--keep-going goes on regardless",
        node=host.name,
    )
    return NodeResult(node=host.name, outcome=Outcome.REFUSED, exit_code=error.exit_code, error=error)
