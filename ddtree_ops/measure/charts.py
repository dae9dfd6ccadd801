"""Charts as inline SVG: kilobytes where a chart library would be megabytes, in the page's own colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ddtree_ops.measure.report import Chart, Point, Series, number

WIDTH, HEIGHT = 460, 320
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 28, 44
NAME_WIDTH, NAME_HEIGHT = 110, 13  # what a name in a chart takes up
SHAPES = ("circle", "square", "diamond", "triangle", "down", "plus")


@dataclass(frozen=True, slots=True)
class _Scale:
    """Values to pixels, with round numbers to label."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1)
        return self.start + share * (self.end - self.start)

    def steps(self, most: int = 6) -> list[float]:
        raw = (self.high - self.low) / most or 1
        power = 10 ** math.floor(math.log10(raw))
        step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [step * n for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def svg(chart: Chart) -> str:
    """The chart as one <svg> element that scales with its box and takes its colours from the page."""
    x, y = _scales(chart)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title, quote=True)}">',
        *_grid(chart, x, y),
        *_levels(chart, y),
        *(_series(series, number_, x, y) for number_, series in enumerate(chart.series)),
        *(_cross(place, why, x) for place, why in chart.crosses),
        *_names(chart.named, x, y),
        "</svg>",
    ]
    return "".join(parts)


def legend(chart: Chart) -> list[tuple[str, str]]:
    """Name and sample mark of every series."""
    return [
        (series.name, f'<svg class="key" viewBox="0 0 16 16">{_mark(SHAPES[n % 6], 8, 8, f"s{n % 6}")}</svg>')
        for n, series in enumerate(chart.series)
    ]


def _scales(chart: Chart) -> tuple[_Scale, _Scale]:
    points = [point for series in chart.series for point in series.points]
    xs = [point.x for point in points] + [place for place, _ in chart.crosses]
    ys = [value for point in points for value in _ends(point)] + [level.y for level in chart.levels]
    top = max(ys, default=1.0) * 1.06 or 1.0
    if chart.ticks:
        across = _Scale(-0.5, len(chart.ticks) - 0.5, LEFT, WIDTH - RIGHT)
    else:
        across = _Scale(0.0, max(xs, default=1.0) * 1.08 or 1.0, LEFT, WIDTH - RIGHT)
    return across, _Scale(0.0, top, HEIGHT - BOTTOM, TOP)


def _ends(point: Point) -> tuple[float, ...]:
    high = point.high if point.high is not None and math.isfinite(point.high) else point.y
    return point.y, min(high, 3 * point.y)


def _grid(chart: Chart, x: _Scale, y: _Scale) -> list[str]:
    parts = []
    for value in y.steps():
        at = y.at(value)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{number(value)}</text>'
        )
    places = enumerate(chart.ticks) if chart.ticks else ((value, number(value)) for value in x.steps())
    for place, name in places:
        parts.append(
            f'<text class="tick" x="{x.at(place):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
            f"{escape(str(name))}</text>"
        )
    parts.append(f'<text class="name" x="4" y="14">{escape(chart.y_label)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    parts.append(
        f'<text class="name" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{escape(chart.x_label)}</text>"
    )
    return parts


def _levels(chart: Chart, y: _Scale) -> list[str]:
    parts: list[str] = []
    used: list[tuple[float, float]] = []
    for level in sorted(chart.levels, key=lambda level: -level.y):
        at = y.at(level.y)
        text = _clear(WIDTH - RIGHT, at - 4, used)
        parts.append(f'<path class="level" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text class="halo" x="{WIDTH - RIGHT}" y="{text:.1f}" text-anchor="end">'
            f"{escape(level.name)}</text>"
        )
    return parts


def _series(series: Series, index: int, x: _Scale, y: _Scale) -> str:
    color, shape = f"s{index % 6}", SHAPES[index % 6]
    parts = []
    if series.joined and len(series.points) > 1:
        path = "L".join(f"{x.at(p.x):.1f} {y.at(p.y):.1f}" for p in series.points)
        parts.append(f'<path class="line {color}" d="M{path}"/>')
    for point in series.points:
        across = x.at(point.x)
        bar = _whisker(point, across, y, color)
        told = f"{series.name}: {point.label}" if point.label else series.name
        mark = _mark(shape, across, y.at(point.y), color)
        parts.append(f"<g>{bar}{mark}<title>{escape(told)}</title></g>")
    return "".join(parts)


def _whisker(point: Point, across: float, y: _Scale, color: str) -> str:
    if point.low is None or point.high is None or not math.isfinite(point.high):
        return ""
    top, bottom = max(TOP, y.at(point.high)), min(HEIGHT - BOTTOM, y.at(max(0.0, point.low)))
    ends = f"M{across - 4:.1f} {top:.1f}h8M{across - 4:.1f} {bottom:.1f}h8"
    return f'<path class="bar {color}" d="M{across:.1f} {top:.1f}V{bottom:.1f}{ends}"/>'


def _mark(shape: str, x: float, y: float, color: str) -> str:
    """A mark that differs by shape as well as by colour."""
    paths = {
        "square": f"M{x - 4.5:.1f} {y - 4.5:.1f}h9v9h-9z",
        "diamond": f"M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z",
        "triangle": f"M{x:.1f} {y - 6:.1f}l5.5 10h-11z",
        "down": f"M{x:.1f} {y + 6:.1f}l5.5 -10h-11z",
        "plus": f"M{x - 2:.1f} {y - 6:.1f}h4v4h4v4h-4v4h-4v-4h-4v-4h4z",
    }
    if shape == "circle":
        return f'<circle class="mark {color}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
    return f'<path class="mark {color}" d="{paths[shape]}"/>'


def _names(points: Sequence[Point], x: _Scale, y: _Scale) -> list[str]:
    """A name beside each point."""
    parts: list[str] = []
    used: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda point: -point.y):
        across = x.at(point.x) + 9
        text = _clear(across, y.at(point.y) + 4, used)
        name = escape(point.label.split(":")[0])
        parts.append(f'<text class="halo" x="{across:.1f}" y="{text:.1f}">{name}</text>')
    return parts


def _clear(across: float, height: float, used: list[tuple[float, float]]) -> float:
    """The first height from here down at which a name covers none of those in `used`, which it joins."""
    while any(
        abs(across - left) < NAME_WIDTH and abs(height - other) < NAME_HEIGHT - 1e-6 for left, other in used
    ):
        height += NAME_HEIGHT
    used.append((across, height))
    return height


def _cross(place: float, why: str, x: _Scale) -> str:
    at, base = x.at(place), HEIGHT - BOTTOM - 9
    d = f"M{at - 5:.1f} {base - 5}l10 10m0 -10l-10 10"
    return f'<g><path class="fail" d="{d}"/><title>{escape(why)}</title></g>'


def frontier(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points that no other beats on both axes: least x, most y."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.x, -p.y)):
        if not best or point.y > best[-1].y:
            best.append(point)
    return tuple(best)
