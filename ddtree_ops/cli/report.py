"""`report`: what a sweep found, as one HTML page and as Markdown; or two sweeps side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ddtree_ops.cli import options as opt
from ddtree_ops.cli.output import print_json
from ddtree_ops.cli.world import read, shipped
from ddtree_ops.measure.record import write_file
from ddtree_ops.measure.render import html, markdown
from ddtree_ops.measure.report import Report
from ddtree_ops.measure.sweep_report import compare, sweep_report
from ddtree_ops.measure.terminal import report_lines
from ddtree_ops.run.ledger import read_sweep


def report(
    folder: Annotated[Path, typer.Argument(help="A sweep's folder.")],
    after: Annotated[Path | None, typer.Argument(help="Another one, to compare it with.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Where to write; the sweep's folder if left out."),
    ] = None,
    json: opt.Json = False,
) -> None:
    """Write the report of a sweep, finished or not, and print it; with a second sweep, compare the two."""
    if after is None:
        made, place = sweep_report(*read_sweep(folder)), out or folder / "report"
    else:
        made, place = compare(read_sweep(folder), read_sweep(after)), out or after / "comparison"
    files = write_reports(made, place.with_suffix("") if place.suffix in (".html", ".md") else place)
    if json:
        print_json({"title": made.title, "decision": made.decision, "files": files, "exit_code": 0})
        return
    print("\n".join(report_lines(made)))
    print(f"report: {', '.join(files)}", file=sys.stderr)


def write_reports(made: Report, place: Path) -> list[str]:
    """Writes PLACE.html and PLACE.md; returns their names."""
    template = read(shipped("templates") / "report.html.j2", "template")
    pages = {".html": html(made, template), ".md": markdown(made)}
    for suffix, text in pages.items():
        write_file(Path(f"{place}{suffix}"), text)
    return [f"{place}{suffix}" for suffix in pages]
