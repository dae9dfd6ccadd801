"""`isolate`: which of patch, padding, branching, graphs and drafter breaks the output."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ddtree_ops.cli import options as opt
from ddtree_ops.cli.output import print_json, print_result, result_fields
from ddtree_ops.cli.report import write_reports
from ddtree_ops.cli.screens import make_screen
from ddtree_ops.cli.trials import one_host
from ddtree_ops.cli.world import load_playbook, make_world
from ddtree_ops.measure.isolate import Trial, table
from ddtree_ops.measure.report import Table
from ddtree_ops.measure.sweep_report import Setting, isolate_report
from ddtree_ops.measure.terminal import table_lines
from ddtree_ops.model.result import NodeResult
from ddtree_ops.run.context import Asked
from ddtree_ops.run.isolate import Isolation, run_isolation

COLUMNS = ("trial", "alone", "with others", "after a hit", "accept length", "what was seen")


def isolate(
    host: Annotated[str, typer.Option("--host", help="The node; one.")],
    profile: opt.ProfileName = None,
    service: opt.Service = None,
    budget: opt.Budget = None,
    topk: opt.Topk = None,
    cuda_graph: opt.CudaGraph = None,
    patches: opt.Patches = None,
    accept_modified: opt.AcceptModified = False,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for a report, HTML and Markdown.")] = None,
    yes: opt.Yes = False,
    lease: opt.Lease = None,
    inventory: opt.InventoryFile = None,
    verbose: opt.Verbose = False,
    json: opt.Json = False,
) -> None:
    """Find out what breaks the output of the profile that `deploy` with these options would bring up.

    Each trial restarts the node's service with one factor changed; at the end the node is back at the
    release it had. Exit code 0 when one explanation is left.
    """
    asked = Asked(
        budget=budget,
        topk=topk,
        cuda_graph=cuda_graph,
        patches=opt.patch_names(patches),
        accept_modified=accept_modified,
    )
    where, asked = one_host(host, inventory, profile, service, lease, asked)
    opt.consent(f"{where.name}: isolate restarts the service for each trial. Go on?", yes=yes)
    screen = make_screen(yes=True)
    world = make_world(screen)
    with world.interrupts.installed():
        result, found = run_isolation(
            world, where, asked, load_playbook("isolate-garbling"),
            lambda trial: screen.note(where.name, _line(trial)),
        )  # fmt: skip
    screen.close()
    code = result.exit_code or (0 if found.conclusion and found.conclusion.faults else 1)
    if out is not None and found.conclusion is not None:
        setting = Setting(
            node=where.name, when=world.clock.utc(), commands=(shlex.join(("ddtree-ops", *sys.argv[1:])),)
        )
        write_reports(isolate_report(found.trials, found.conclusion, setting), out / "isolate")
    if json:
        print_json({"nodes": [{**result_fields(result), **_fields(found)}], "exit_code": code})
    else:
        _print(result, found, verbose)
    raise typer.Exit(code)


def _line(trial: Trial) -> str:
    seen = f": {trial.evidence}" if trial.evidence else ""
    return f"{trial.setup.label} is {trial.symptom}{seen}"


def _fields(found: Isolation) -> dict[str, Any]:
    told = found.conclusion
    return {
        "trials": [_trial(trial) for trial in found.trials],
        "faults": list(told.faults) if told else [],
        "sentence": told.sentence if told else "",
        "restarts": len(found.trials),
        "block_size": found.block,
    }


def _trial(trial: Trial) -> dict[str, Any]:
    setup = {**asdict(trial.setup), "patches": sorted(trial.setup.patches)}
    return {**asdict(trial), "setup": setup, "label": trial.setup.label, "symptom": str(trial.symptom)}


def _print(result: NodeResult, found: Isolation, verbose: bool) -> None:
    rows = table(found.trials)
    if rows:
        print("\n".join(table_lines(Table(title=f"Trials on {result.node}", columns=COLUMNS, rows=rows))))
    if found.conclusion is not None:
        count = f"{len(rows)} restart{'' if len(rows) == 1 else 's'}"
        print(f"\n{found.conclusion.sentence} ({count})")
    if result.error is not None:
        print_result(result, verbose=verbose)
    else:
        print(f"{result.node}: back at release {result.release}, proven", file=sys.stderr)
