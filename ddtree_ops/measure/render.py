"""A report on paper: one HTML file that needs nothing else, or Markdown."""

from __future__ import annotations

from dataclasses import replace

from jinja2 import Environment, StrictUndefined

from ddtree_ops.measure.charts import legend, svg
from ddtree_ops.measure.report import Report, Table, with_ids
from ddtree_ops.measure.terminal import chart_lines


def html(report: Report, template: str) -> str:
    """The report through `report.html.j2`; styles, script and drawings are all inside."""
    environment = Environment(
        undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(svg=svg, legend=legend)
    page = environment.from_string(template)
    return page.render(report=replace(report, tables=with_ids(report.tables)))


def markdown(report: Report) -> str:
    """The same report as Markdown, its charts as bars of characters."""
    parts = [f"# {report.title}", report.subtitle, "## Decision"]
    parts.append(
        "\n".join(f"{'**' + said + '**' if not n else said}" for n, said in enumerate(report.decision))
    )
    for chart in report.charts:
        parts += [f"## {chart.title}", "```text\n" + "\n".join(chart_lines(chart)) + "\n```", chart.note]
    for table in report.tables:
        parts += [f"## {table.title}", _table(table), table.note]
    if report.commands:
        parts += ["## Commands", "```sh\n" + "\n".join(report.commands) + "\n```"]
    if report.method:
        parts += ["## How it was measured", "\n".join(f"- {line}" for line in report.method)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(table: Table) -> str:
    lines = [table.columns, ("---",) * len(table.columns), *table.rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
