"""`smoke`: prove the output of what a node runs now."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import Annotated

import typer

from ddtree_ops.cli import options as opt
from ddtree_ops.cli.output import print_json
from ddtree_ops.cli.screens import gate_line, make_screen
from ddtree_ops.cli.session import Session, sessions
from ddtree_ops.cli.world import make_world, shipped
from ddtree_ops.model.errors import Refused
from ddtree_ops.model.plan import Playbook
from ddtree_ops.model.release import Gate
from ddtree_ops.run import resolve
from ddtree_ops.run import smoke as gate
from ddtree_ops.run.context import NodeRun, World


def smoke(
    host: opt.Hosts,
    service: opt.Service = None,
    brief: Annotated[bool, typer.Option("--brief", help="Only the poem and the quicksort.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds for each node.")] = 900.0,
    inventory: opt.InventoryFile = None,
    json: opt.Json = False,
) -> None:
    """Prove the output of what runs now; nothing is changed, the prefix cache is emptied."""
    screen = make_screen(yes=True)
    world = make_world(screen)
    rows = []
    for one in sessions(host, inventory, service=service):
        gates: list[Gate] = []
        total = _verdict(world, one, brief, timeout, gates)
        rows.append(
            {"node": one.host.name, "passed": total.passed, "evidence": total.evidence, "gates": gates}
        )
        screen.close()
        if not json:
            for line in (*gates, total):
                print(f"{one.host.name}: {gate_line(line)}")
    code = 0 if all(row["passed"] for row in rows) else 1
    if json:
        nodes = [{**row, "gates": [asdict(gate) for gate in row["gates"]]} for row in rows]  # type: ignore[attr-defined]
        print_json({"nodes": nodes, "exit_code": code})
    raise typer.Exit(code)


def _verdict(world: World, one: Session, brief: bool, timeout_s: float, gates: list[Gate]) -> Gate:
    with ExitStack() as links:
        run = NodeRun(
            world=world, host=one.host, asked=one.asked, id="smoke",
            playbook=Playbook(name="smoke", summary="", steps=()),
            links=links, link=one.link, node=one.node,
        )  # fmt: skip
        run.facts = resolve.probe(one.node, one.asked, shipped("patches"))
        if not run.facts.unit.running:
            raise Refused("smoke", f"got {run.facts.unit.name} {run.facts.unit.active}, expected it to run")
        profile = resolve.running_profile(run.facts, one.node.service)
        world.screen.step(one.host.name, "smoke", "prove the output of what runs now")
        return gate.verdict(run, profile, timeout_s, brief=brief, show=gates.append)
