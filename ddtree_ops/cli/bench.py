"""`bench`: measure what a node runs now."""

from __future__ import annotations

import csv
import io
import sys
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ddtree_ops.cli import options as opt
from ddtree_ops.cli.output import print_json
from ddtree_ops.cli.screens import make_screen
from ddtree_ops.cli.session import Session, sessions
from ddtree_ops.cli.trials import whole_numbers
from ddtree_ops.cli.world import make_world
from ddtree_ops.measure.client import Closed, Poisson
from ddtree_ops.measure.metrics import Limits
from ddtree_ops.measure.record import write_file
from ddtree_ops.measure.report import Table, number
from ddtree_ops.measure.terminal import table_lines
from ddtree_ops.measure.workload import workload
from ddtree_ops.model.plan import Playbook
from ddtree_ops.run import bench as benching
from ddtree_ops.run import resolve
from ddtree_ops.run.context import NodeRun, World
from ddtree_ops.run.loads import Fresh, LoadSpec

COLUMNS = (
    "load", "requests", "tokens/s per user", "tokens/s in total", "TTFT p50, ms", "TTFT p99, ms",
    "TPOT p50, ms", "ITL p99, ms", "ms per step", "accept length (token-weighted)",
    "accept length (request-weighted)", "goodput, requests/s", "findings",
)  # fmt: skip


class Driver(StrEnum):
    OWN = "own"
    SGLANG = "sglang"


def bench(
    host: opt.Hosts,
    service: opt.Service = None,
    workloads: Annotated[
        list[str] | None, typer.Option("--workload", help="Shipped workload or file; repeatable.")
    ] = None,
    concurrency: Annotated[str, typer.Option("--concurrency", help="Users at once, comma-separated.")] = "1",
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=0.001, help="Requests a second, not users at once."),
    ] = None,
    requests: Annotated[int | None, typer.Option("--requests", min=1, help="Requests of each load.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", min=1, help="End each load then.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Longest answer; else the workload's own.")
    ] = None,
    fresh: Annotated[Fresh, typer.Option("--fresh", help="How prefix caches are kept out.")] = Fresh.UNIQUE,
    ttft: Annotated[float | None, typer.Option("--ttft", help="Goodput: longest TTFT, ms.")] = None,
    tpot: Annotated[float | None, typer.Option("--tpot", help="Goodput: longest TPOT, ms.")] = None,
    e2e: Annotated[float | None, typer.Option("--e2e", help="Goodput: longest whole answer, ms.")] = None,
    driver: Annotated[Driver, typer.Option("--driver", help="Ours, or sglang.bench_serving.")] = Driver.OWN,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for raw samples (JSONL) and CSV.")] = None,
    inventory: opt.InventoryFile = None,
    json: opt.Json = False,
) -> None:
    """Measure what runs now: time to first token, rates, accept length; nothing is restarted."""
    shapes: tuple[Closed | Poisson, ...] = (
        (Poisson(rate=rate),)
        if rate is not None
        else tuple(Closed(concurrency=users) for users in whole_numbers("--concurrency", concurrency))
    )
    names = tuple(workloads or ("code", "chat"))
    for name in names:
        workload(name)  # says now what is wrong with it
    spec = LoadSpec(
        requests=requests,
        seconds=seconds,
        max_tokens=max_tokens,
        fresh=fresh,
        limits=_limits(ttft, tpot, e2e),
    )
    screen = make_screen(yes=True)
    world = make_world(screen)
    found = []
    for one in sessions(host, inventory, service=service):
        order = benching.BenchOrder(
            workloads=names, shapes=shapes, spec=spec, out=out / one.host.name if out else None
        )
        found.append((one.host.name, _rows(world, one, order, driver)))
    screen.close()
    code = 0 if all(row.summary.usable for _, rows in found for row in rows) else 1
    if out is not None:
        write_file(out / "bench.csv", _csv(found))
        print(f"samples and tables: {out}", file=sys.stderr)
    if json:
        nodes = [{"node": node, "rows": [row.fields() for row in rows]} for node, rows in found]
        print_json({"nodes": nodes, "exit_code": code})
    else:
        for node, rows in found:
            table = Table(title=node, columns=COLUMNS, rows=tuple(map(_cells, rows)))
            print("\n".join((*table_lines(table), "")))
    raise typer.Exit(code)


def _rows(
    world: World, one: Session, order: benching.BenchOrder, driver: Driver
) -> tuple[benching.BenchRow, ...]:
    with ExitStack() as links:
        run = NodeRun(
            world=world, host=one.host, asked=one.asked, id="bench",
            playbook=Playbook(name="bench", summary="", steps=()),
            links=links, link=one.link, node=one.node,
        )  # fmt: skip
        run.facts = resolve.probe(one.node, one.asked, world.patches)
        world.screen.step(one.host.name, "bench", "measure what runs now")
        measure = benching.bench if driver is Driver.OWN else benching.bench_foreign
        return measure(run, order)


def _limits(ttft: float | None, tpot: float | None, e2e: float | None) -> Limits | None:
    """Limits in milliseconds as seconds; None without any."""
    seconds = [None if limit is None else limit / 1000 for limit in (ttft, tpot, e2e)]
    if seconds == [None] * 3:
        return None
    return Limits(ttft_s=seconds[0], tpot_s=seconds[1], e2e_s=seconds[2])


def _cells(row: benching.BenchRow) -> tuple[str, ...]:
    summary = row.summary
    figures = (
        summary.user_rate.p50 if summary.user_rate else None,
        summary.output_rate or summary.output_rate_whole,
        summary.ttft.p50 * 1000 if summary.ttft else None,
        summary.ttft.p99 * 1000 if summary.ttft else None,
        summary.tpot.p50 * 1000 if summary.tpot else None,
        summary.itl.p99 * 1000 if summary.itl else None,
        summary.step.p50 * 1000 if summary.step else None,
        summary.accept_token_weighted,
        summary.accept_request_weighted,
        summary.goodput,
    )
    return (row.label, str(summary.requests), *map(number, figures), "; ".join(summary.findings))


def _csv(found: list[tuple[str, tuple[benching.BenchRow, ...]]]) -> str:
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(("node", *COLUMNS))
    table.writerows((node, *_cells(row)) for node, rows in found for row in rows)
    return out.getvalue()
