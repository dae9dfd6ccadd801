"""A report as a value: what it says, shows and lists, before anybody renders it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One mark of a chart; `low` and `high` are the ends of its interval where it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""  # what a reader who points at it is told


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    name: str
    points: tuple[Point, ...]
    joined: bool = True  # a line through the points; False: marks alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A horizontal line to measure the others by."""

    name: str
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Two axes and what lies between them; `ticks` names the places of a categorical x axis."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    levels: tuple[Level, ...] = ()
    ticks: tuple[str, ...] = ()
    crosses: tuple[tuple[float, str], ...] = ()  # x and reason of what failed there
    named: tuple[Point, ...] = ()  # marks whose label's first word is written beside them
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    id: str = ""

    def tsv(self) -> str:
        """Tab-separated text that a spreadsheet takes as it is."""
        lines = (self.columns, *self.rows)
        return "\n".join(
            "\t".join(cell.replace("\t", " ").replace("\n", " ") for cell in line) for line in lines
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Decision first, then what it rests on, then how that was measured."""

    title: str
    subtitle: str
    decision: tuple[str, ...]
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    commands: tuple[str, ...] = ()
    method: tuple[str, ...] = ()


def number(value: float | None, digits: int = 3) -> str:
    """A figure to so many significant digits, without an exponent; "" for none."""
    if value is None or value != value:
        return ""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits}g}")  # 999.9 is 1,000
    if abs(rounded) >= 10**digits:
        return f"{value:,.0f}"
    text = f"{rounded:.{digits}g}"
    return f"{rounded:.8f}".rstrip("0") if "e" in text else text


def span(low: float | None, high: float | None) -> str:
    """An interval's ends, or "" when they are not known."""
    finite = low is not None and high is not None and abs(low) < 1e300 and abs(high) < 1e300
    return f"{number(low)}–{number(high)}" if finite else ""


def with_ids(tables: Sequence[Table]) -> tuple[Table, ...]:
    """The tables, each with an id to copy it by."""
    return tuple(
        Table(title=t.title, columns=t.columns, rows=t.rows, note=t.note, id=f"table-{n}")
        for n, t in enumerate(tables)
    )
