"""`deploy`, `plan`, `rollback` and `run`: the commands that carry playbooks out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ddtree_ops.cli import options as opt
from ddtree_ops.cli.output import plan_fields, print_json, print_result, result_fields
from ddtree_ops.cli.screens import PlanKeeper, make_screen
from ddtree_ops.cli.world import find_targets, load_playbook, make_world
from ddtree_ops.model.errors import UsageError
from ddtree_ops.model.result import fleet_exit_code
from ddtree_ops.run.context import Asked
from ddtree_ops.run.fleet import run_fleet

To = Annotated[str | None, typer.Option("--to", help="Release to go back to.")]


def deploy(
    host: opt.Hosts,
    profile: opt.ProfileName = None,
    service: opt.Service = None,
    budget: opt.Budget = None,
    topk: opt.Topk = None,
    cuda_graph: opt.CudaGraph = None,
    patches: opt.Patches = None,
    accept_modified: opt.AcceptModified = False,
    yes: opt.Yes = False,
    dry_run: opt.DryRun = False,
    keep_going: opt.KeepGoing = False,
    lease: opt.Lease = None,
    inventory: opt.InventoryFile = None,
    verbose: opt.Verbose = False,
    json: opt.Json = False,
) -> None:
    """Take nodes to a proven release of a profile, or put them back."""
    asked = Asked(
        budget=budget,
        topk=topk,
        cuda_graph=cuda_graph,
        patches=opt.patch_names(patches),
        accept_modified=accept_modified,
        dry_run=dry_run,
    )
    carry_out(
        "deploy", host, asked, profile=profile, service=service, yes=yes, keep_going=keep_going,
        lease=lease, inventory=inventory, verbose=verbose, as_json=json,
    )  # fmt: skip


def plan(
    host: opt.Hosts,
    profile: opt.ProfileName = None,
    service: opt.Service = None,
    budget: opt.Budget = None,
    topk: opt.Topk = None,
    cuda_graph: opt.CudaGraph = None,
    patches: opt.Patches = None,
    accept_modified: opt.AcceptModified = False,
    inventory: opt.InventoryFile = None,
    json: opt.Json = False,
) -> None:
    """Show what `deploy` with the same options would do, with diffs; touch nothing."""
    deploy(
        host, profile, service, budget, topk, cuda_graph, patches, accept_modified, dry_run=True,
        inventory=inventory, json=json,
    )  # fmt: skip


def rollback(
    host: opt.Hosts,
    to: To = None,
    service: opt.Service = None,
    yes: opt.Yes = False,
    dry_run: opt.DryRun = False,
    keep_going: opt.KeepGoing = False,
    lease: opt.Lease = None,
    inventory: opt.InventoryFile = None,
    verbose: opt.Verbose = False,
    json: opt.Json = False,
) -> None:
    """Take nodes back to the release before this one, or to one of them; release 0 is the state found."""
    asked = Asked(rollback=True, to=to, dry_run=dry_run)
    carry_out(
        "rollback", host, asked, profile=None, service=service, yes=yes, keep_going=keep_going,
        lease=lease, inventory=inventory, verbose=verbose, as_json=json,
    )  # fmt: skip


def run(
    playbook: Annotated[Path, typer.Argument(help="A playbook file.")],
    host: opt.Hosts,
    to: To = None,
    profile: opt.ProfileName = None,
    service: opt.Service = None,
    budget: opt.Budget = None,
    topk: opt.Topk = None,
    cuda_graph: opt.CudaGraph = None,
    patches: opt.Patches = None,
    accept_modified: opt.AcceptModified = False,
    yes: opt.Yes = False,
    dry_run: opt.DryRun = False,
    lease: opt.Lease = None,
    inventory: opt.InventoryFile = None,
    verbose: opt.Verbose = False,
    json: opt.Json = False,
) -> None:
    """Carry out an operator's own playbook; with --to its goal is a release that is on the node."""
    asked = Asked(
        budget=budget,
        topk=topk,
        cuda_graph=cuda_graph,
        patches=opt.patch_names(patches),
        accept_modified=accept_modified,
        dry_run=dry_run,
        rollback=to is not None,
        to=to,
    )
    carry_out(
        str(playbook), host, asked, profile=profile, service=service, yes=yes, keep_going=False,
        lease=lease, inventory=inventory, verbose=verbose, as_json=json,
    )  # fmt: skip


def carry_out(
    playbook_name: str,
    names: list[str],
    asked: Asked,
    *,
    profile: str | None,
    service: str | None,
    yes: bool,
    keep_going: bool,
    lease: float | None,
    inventory: Path | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Runs a playbook on the named hosts, shows the outcome, and ends with its exit code."""
    if not (yes or asked.dry_run or sys.stdin.isatty()):
        raise UsageError(
            "--yes", "got no terminal to ask on, expected --yes", hint="--dry-run only shows the plan"
        )
    playbook = load_playbook(playbook_name)
    screen = PlanKeeper(make_screen(yes=yes))
    world = make_world(screen)
    hosts = tuple(
        opt.asked_of(target, profile, service, lease, asked) for target in find_targets(names, inventory)
    )
    with world.interrupts.installed():
        results = run_fleet(world, hosts, playbook, keep_going=keep_going)
    code = fleet_exit_code(results)
    screen.close()
    if as_json:
        nodes: list[dict[str, Any]] = [result_fields(result) for result in results]
        for node in nodes:
            if asked.dry_run and node["node"] in screen.plans:
                node["plan"] = plan_fields(screen.plans[node["node"]])
        print_json({"nodes": nodes, "exit_code": code})
    else:
        for result in results:
            if not asked.dry_run or result.error is not None:
                print_result(result, verbose=verbose)
    raise typer.Exit(code)
