"""`selftest`: the attention proof on a node's own GPUs, before any restart."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Annotated

import typer

from ddtree_ops.cli import options as opt
from ddtree_ops.cli.output import print_json
from ddtree_ops.cli.screens import gate_line, make_screen
from ddtree_ops.cli.session import Session, sessions
from ddtree_ops.cli.world import make_world
from ddtree_ops.model.errors import UsageError
from ddtree_ops.model.plan import Playbook
from ddtree_ops.model.release import Gate
from ddtree_ops.run import resolve
from ddtree_ops.run import selftest as proof
from ddtree_ops.run.context import NodeRun, World

Release = Annotated[
    str | None, typer.Option("--release", help="A staged release; the current one when left out.")
]


def selftest(
    host: opt.Hosts,
    service: opt.Service = None,
    release: Release = None,
    budget: opt.Budget = None,
    beside: Annotated[bool, typer.Option("--beside", help="Also while processes hold the GPUs.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds for each node.")] = 300.0,
    inventory: opt.InventoryFile = None,
    json: opt.Json = False,
) -> None:
    """Prove a release's tree attention on the node's own GPU with its own venv; nothing is restarted."""
    screen = make_screen(yes=True)
    world = make_world(screen)
    found = [
        (one.host.name, _verdict(world, one, release, budget, beside, timeout))
        for one in sessions(host, inventory, service=service)
    ]
    screen.close()
    code = 0 if all(gate.passed for _, gate in found) else 1
    if json:
        print_json({"nodes": [{"node": node, **asdict(gate)} for node, gate in found], "exit_code": code})
    else:
        for node, gate in found:
            print(f"{node}: {gate_line(gate)}")
    raise typer.Exit(code)


def _verdict(
    world: World, one: Session, release: str | None, budget: int | None, beside: bool, timeout_s: float
) -> Gate:
    facts = resolve.probe(one.node, one.asked, world.patches)
    proof.need_room(facts, beside=beside)
    profile = resolve.running_profile(facts, one.node.service)
    profile = profile if budget is None else replace(profile, budget=budget)
    if profile.budget is None:
        raise UsageError("budget", "got a profile without a tree, expected --budget", node=one.host.name)
    chosen = release or facts.current
    if chosen is not None and chosen not in facts.releases:
        raise UsageError("--release", f"got {chosen}, expected one of: {', '.join(facts.releases) or 'none'}")
    staged = f"{facts.state_dir}/{one.node.service}/releases/{chosen}/site"
    site = facts.sglang.package if chosen in (None, "0") else staged
    with ExitStack() as links:
        run = NodeRun(
            world=world, host=one.host, asked=one.asked, id="selftest", links=links, link=one.link,
            node=one.node, playbook=Playbook(name="selftest", summary="", steps=()),
        )  # fmt: skip
        run.facts = facts
        return proof.prove(run, profile, site or "", timeout_s)
