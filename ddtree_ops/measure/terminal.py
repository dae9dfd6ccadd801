"""Plots for a terminal: bars with their intervals, and a line of block characters for a live rate."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ddtree_ops.measure.report import Chart, Point, Report, Series, Table, number, span

BLOCKS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The latest values as blocks from zero to the highest."""
    latest = list(values)[-width:]
    top = max(latest, default=0.0)
    return "".join(BLOCKS[min(7, int(8 * value / top))] if top > 0 else BLOCKS[0] for value in latest)


def bars(rows: Sequence[tuple[str, float, float | None, float | None]], width: int = 72) -> list[str]:
    """One line a row: label, bar from zero, value and interval; an interval's ends are marked in the bar."""
    label = max((len(name) for name, *_ in rows), default=0)
    room = max(10, width - label - 26)
    top = max((_most(value, high) for _, value, _, high in rows), default=1.0) or 1.0
    lines = []
    for name, value, low, high in rows:
        drawn = list(_bar(value / top * room).ljust(room))
        for end, sign in ((low, "├"), (high, "┤")):
            if end is not None and math.isfinite(end) and 0 <= end <= top:
                drawn[min(room - 1, int(end / top * room))] = sign
        ends = span(low, high)
        lines.append(f"{name:<{label}} {''.join(drawn)} {number(value):>6} {ends and f'({ends})'}".rstrip())
    return lines


def _most(value: float, high: float | None) -> float:
    return high if high is not None and math.isfinite(high) and high < 3 * value else value


def _bar(length: float) -> str:
    whole, part = int(length), int(8 * (length - int(length)))
    return "█" * whole + (EIGHTHS[part] if part else "")


def chart_lines(chart: Chart, width: int = 72) -> list[str]:
    """A chart as bars, one a point, then its levels and what failed."""
    rows = [
        (_name(series, point), point.y, point.low, point.high)
        for series in chart.series
        for point in series.points
    ]
    rows += [(level.name, level.y, None, None) for level in chart.levels]
    lines = [f"{chart.title} ({chart.y_label})", *bars(rows, width)]
    return lines + [f"✗ {why}" for _, why in chart.crosses]


def _name(series: Series, point: Point) -> str:
    name = point.label.split(":")[0] or series.name
    return name if series.joined else f"{name}, {series.name}"


def table_lines(table: Table, width: int = 100) -> list[str]:
    """A table in columns; the last one takes what room is left and is never cut."""
    rows = [table.columns, *table.rows]
    widths = [max(len(row[n]) for row in rows) for n in range(len(table.columns))]
    lines = [
        "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    rule = "─" * min(width, max(map(len, lines)))
    return [table.title, lines[0], rule, *lines[1:], *([table.note] if table.note else [])]


def report_lines(report: Report, width: int = 72) -> list[str]:
    """A whole report as plain text: decision, plots, tables."""
    lines = [report.title, report.subtitle, "", *report.decision]
    for chart in report.charts:
        lines += ["", *chart_lines(chart, width)]
    for table in report.tables:
        lines += ["", *table_lines(table)]
    return lines
