"""`sweep budgets`: which budget, top-k and graph mode to run, by how much it wins, and how sure that is."""

from __future__ import annotations

import shlex
import sys
import uuid
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ddtree_ops.cli import options as opt
from ddtree_ops.cli.output import print_json, print_result, result_fields
from ddtree_ops.cli.report import write_reports
from ddtree_ops.cli.screens import make_screen
from ddtree_ops.cli.trials import one_host, whole_numbers
from ddtree_ops.cli.world import load_playbook, make_world
from ddtree_ops.measure.decide import Decision
from ddtree_ops.measure.sweep import SweepPlan, arms
from ddtree_ops.measure.sweep_report import sweep_report
from ddtree_ops.measure.terminal import table_lines
from ddtree_ops.measure.workload import workload
from ddtree_ops.model.errors import UsageError
from ddtree_ops.model.result import NodeResult
from ddtree_ops.run.clock import SystemClock
from ddtree_ops.run.context import Asked
from ddtree_ops.run.ledger import Order, open_ledger, read_sweep
from ddtree_ops.run.loads import Fresh, LoadSpec
from ddtree_ops.run.sweep import SweepOrder, run_sweep

app = typer.Typer(no_args_is_help=True, help="Measure several configurations and decide between them.")


class Objective(StrEnum):
    """The figure that arms are ranked by."""

    USER_RATE = "user_rate"
    OUTPUT_RATE = "output_rate"


MODES = {"on": True, "off": False}


@app.callback()
def root() -> None:
    """Measure several configurations and decide between them."""


@app.command()
def budgets(
    host: Annotated[str, typer.Option("--host", help="The node; one.")],
    budgets: Annotated[str, typer.Option("--budgets", help="Budgets, comma-separated.")],
    topk: Annotated[str, typer.Option("--topk", help="Top-k caps, comma-separated; free: no cap.")] = "free",
    graphs: Annotated[str, typer.Option("--graphs", help="Graph modes: on, off or both.")] = "on",
    workloads: Annotated[
        list[str] | None, typer.Option("--workload", help="Shipped workload or file; repeatable.")
    ] = None,
    concurrency: Annotated[str, typer.Option("--concurrency", help="Users at once, comma-separated.")] = "1",
    requests: Annotated[int | None, typer.Option("--requests", min=1, help="Requests of one cell.")] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, help="Longest answer; else the workload's own."),
    ] = None,
    fresh: Annotated[Fresh, typer.Option("--fresh", help="How prefix caches are kept out.")] = Fresh.UNIQUE,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Visits an arm would get; half are allowed.")
    ] = 5,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="A lead that is not worth measuring on for: 0.02 is 2 %.")
    ] = 0.02,
    objective: Annotated[
        Objective, typer.Option("--objective", help="What decides: a user's tokens/s, or those of all.")
    ] = Objective.USER_RATE,
    baselines: Annotated[
        bool, typer.Option("--baselines/--no-baselines", help="Also the chain, and no drafter at all.")
    ] = True,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for ledger, samples and reports.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the sweep in --out.")] = False,
    deploy_winner: Annotated[
        bool, typer.Option("--deploy-winner", help="End at the best arm's release, confirmed.")
    ] = False,
    profile: opt.ProfileName = None,
    service: opt.Service = None,
    patches: opt.Patches = None,
    accept_modified: opt.AcceptModified = False,
    yes: opt.Yes = False,
    lease: opt.Lease = None,
    inventory: opt.InventoryFile = None,
    verbose: opt.Verbose = False,
    json: opt.Json = False,
) -> None:
    """Measure budgets × top-k × graph modes and say which to run.

    Each arm restarts the service; at the end the node is back at the release it had, unless
    --deploy-winner. Killed at any moment, the node goes back by itself, and --resume goes on.
    """
    plan = _plan(budgets, topk, graphs, workloads, concurrency, repeats, tolerance, baselines)
    plan = replace(plan, objective=str(objective))
    asked = Asked(patches=opt.patch_names(patches), accept_modified=accept_modified)
    where, asked = one_host(host, inventory, profile, service, lease, asked)
    question = f"{where.name}: {len(plan.arms)} arms in at most {plan.restart_cap} restarts. Go on?"
    opt.consent(question, yes=yes)
    folder = out or Path(f"sweep-{where.name}")
    screen = make_screen(yes=True)
    world = make_world(screen)
    spec = LoadSpec(requests=requests, max_tokens=max_tokens, fresh=fresh)
    order = SweepOrder(spec=spec, deploy_winner=deploy_winner)
    with (
        open_ledger(folder, _order(where.name, plan), resume=resume) as ledger,
        world.interrupts.installed(),
    ):
        result, made = run_sweep(world, where, asked, load_playbook("sweep-budgets"), ledger, order)
    screen.close()
    code = result.exit_code or (0 if made.winner is not None else 1)
    seen = made.ranking or made.failures
    files = write_reports(sweep_report(*read_sweep(folder)), folder / "report") if seen else []
    if json:
        told = {"decision": _decision(made), "folder": str(folder), "reports": files}
        print_json({"nodes": [{**result_fields(result), **told}], "exit_code": code})
    else:
        _print(result, folder, files, verbose)
    raise typer.Exit(code)


def _plan(
    budgets: str,
    topk: str,
    graphs: str,
    workloads: list[str] | None,
    concurrency: str,
    repeats: int,
    tolerance: float,
    baselines: bool,
) -> SweepPlan:
    """The options as a plan; UsageError says which of them is wrong."""
    names = tuple(workloads or ("code", "chat"))
    for name in names:
        workload(name)  # says now what is wrong with it
    grid = arms(whole_numbers("--budgets", budgets), _topks(topk), _modes(graphs), baselines=baselines)
    return SweepPlan(
        arms=grid,
        workloads=names,
        concurrencies=whole_numbers("--concurrency", concurrency),
        repeats=repeats,
        tolerance=tolerance,
    )


def _order(node: str, plan: SweepPlan) -> Order:
    return Order(
        node=node,
        plan=plan,
        mark=uuid.uuid4().hex[:6],
        command=shlex.join(("ddtree-ops", *sys.argv[1:])),
        when=SystemClock().utc(),
    )


def _print(result: NodeResult, folder: Path, files: list[str], verbose: bool) -> None:
    if files:
        report = sweep_report(*read_sweep(folder))
        print("\n".join((*report.decision, "")))
        for table in report.tables[:2]:
            print("\n".join((*table_lines(table), "")))
        print(f"report: {', '.join(files)}", file=sys.stderr)
    if result.error is None and str(result.outcome) == "unchanged":
        print(f"{result.node}: back at release {result.release}, proven", file=sys.stderr)
        return
    print_result(result, verbose=verbose)
    if not result.error:
        return
    print(f"hint: the same command with --resume goes on where {folder} ends", file=sys.stderr)


def _decision(made: Decision) -> dict[str, Any]:
    return {
        "final": made.final,
        "winner": None if made.winner is None else {"id": made.winner.id, **asdict(made.winner)},
        "sentences": made.sentences,
        "ranking": [{**asdict(ranked), "id": ranked.arm.id} for ranked in made.ranking],
        "failures": [asdict(failure) for failure in made.failures],
        "restarts": made.restarts,
        "noise": made.noise,
        "stopped": made.stopped,
    }


def _topks(text: str) -> tuple[int | None, ...]:
    words = [word.strip() for word in text.split(",")]
    return tuple(None if word == "free" else whole_numbers("--topk", word)[0] for word in words)


def _modes(text: str) -> tuple[bool, ...]:
    words = [word.strip() for word in text.split(",")]
    if not words or any(word not in MODES for word in words):
        raise UsageError("--graphs", f"got {text!r}, expected on, off or on,off")
    return tuple(dict.fromkeys(MODES[word] for word in words))
