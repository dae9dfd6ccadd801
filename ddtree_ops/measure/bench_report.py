"""What a bench of one engine has to say: one row a load, and latency against throughput over the loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ddtree_ops.measure.client import Progress
from ddtree_ops.measure.gpu import GpuLoad
from ddtree_ops.measure.metrics import Spread, Summary
from ddtree_ops.measure.report import Chart, Point, Report, Series, Table, number
from ddtree_ops.measure.sweep_report import Setting
from ddtree_ops.measure.terminal import sparkline

COLUMNS = (
    "workload", "load", "requests", "tokens/s in total", "tokens/s whole run", "tokens/s per user",
    "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "gap p99", "E2E p50", "E2E p99", "ms per step",
    "accept length (token-weighted)", "accept length (request-weighted)", "goodput/s", "cached prompt",
)  # fmt: skip


METHOD = (
    "Warm-up is left out; tokens are the server's own counts.",
    "p50 and p99 are over requests, those of gaps over arrivals.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One load of a bench; `load` is its shape in words, such as `8 at once` or `3/s`."""

    workload: str
    load: str
    summary: Summary
    gpus: tuple[GpuLoad, ...] = ()


def bench_report(loads: Sequence[Measured], setting: Setting) -> Report:
    """The report of one engine under one or several loads; latencies are in milliseconds."""
    tables = [Table(title="Loads", columns=COLUMNS, rows=tuple(map(_row, loads)), note="Latencies in ms.")]
    gpus = tuple(_gpu(one, gpu) for one in loads for gpu in one.gpus)
    if gpus:
        names = ("workload", "load", "GPU", "SM clock, MHz", "power, W", "temperature, °C", "memory, MiB")
        tables.append(Table(title="GPUs under load", columns=names, rows=gpus, note="Mean (lowest–highest)."))
    if setting.environment:
        tables.append(Table(title="Environment", columns=("what", "value"), rows=setting.environment))
    return Report(
        title=f"Bench of {setting.node}",
        subtitle=setting.when,
        decision=tuple(line for one in loads for line in _said(one)),
        charts=tuple(chart for chart in (_pareto(loads),) if chart.series),
        tables=tuple(tables),
        commands=setting.commands,
        method=METHOD,
    )


def _said(one: Measured) -> list[str]:
    """The load's headline, then whatever forbids to trust it."""
    rate = one.summary.output_rate or one.summary.output_rate_whole
    accept = one.summary.accept_token_weighted
    said = f"{one.workload}, {one.load}: {number(rate) or 'no'} tokens/s in total"
    said += f", accept length {number(accept)} (token-weighted)" if accept else ""
    warned = "" if one.summary.usable else " Not to be compared."
    return [f"{said}.{warned}", *(f"{found[:1].upper()}{found[1:]}." for found in one.summary.findings)]


def _ms(spread: Spread | None, part: str) -> str:
    return number(1000 * float(getattr(spread, part))) if spread else ""


def _row(one: Measured) -> tuple[str, ...]:
    s = one.summary
    return (
        one.workload, one.load, str(s.requests), number(s.output_rate), number(s.output_rate_whole),
        number(s.user_rate.mean if s.user_rate else None), _ms(s.ttft, "p50"), _ms(s.ttft, "p99"),
        _ms(s.tpot, "p50"), _ms(s.tpot, "p99"), _ms(s.gap, "p99"), _ms(s.e2e, "p50"), _ms(s.e2e, "p99"),
        _ms(s.step, "p50"), number(s.accept_token_weighted), number(s.accept_request_weighted),
        number(s.goodput),
        "" if s.cached_share is None else f"{s.cached_share:.0%}",
    )  # fmt: skip


def _gpu(one: Measured, gpu: GpuLoad) -> tuple[str, ...]:
    figures = (gpu.sm_clock_mhz, gpu.power_w, gpu.temperature_c, gpu.memory_used_mib)
    told = (f"{number(f.mean)} ({number(f.low)}–{number(f.high)})" if f else "" for f in figures)
    return (one.workload, one.load, f"{gpu.index}: {gpu.name}", *told)


def _pareto(loads: Sequence[Measured]) -> Chart:
    """One series a workload; its points are its loads."""
    series: dict[str, list[Point]] = {}
    for one in loads:
        rate = one.summary.output_rate or one.summary.output_rate_whole
        if rate and one.summary.tpot:
            x = 1000 * one.summary.tpot.p50
            told = f"{one.load}: {number(x)} ms, {number(rate)} tokens/s"
            series.setdefault(one.workload, []).append(Point(x=x, y=rate, label=told))
    return Chart(
        title="Latency against throughput",
        x_label="TPOT p50, ms (less is better)",
        y_label="tokens/s in total",
        series=tuple(Series(name=name, points=tuple(points)) for name, points in series.items()),
        named=tuple(point for points in series.values() for point in points),
    )


def live_line(ticks: Sequence[Progress], width: int = 30) -> str:
    """One line for a live view: what is done, what is under way, and the rate of tokens over time."""
    if not ticks:
        return "starting"
    rates = [
        (after.tokens - before.tokens) / (after.at - before.at)
        for before, after in pairwise(ticks)
        if after.at > before.at
    ]
    now = ticks[-1]
    rate = sum(rates[-4:]) / len(rates[-4:]) if rates else 0.0
    parts = [f"{now.done}/{now.total}", f"{now.in_flight} under way", f"{number(rate)} tokens/s"]
    parts += [f"{now.failed} failed"] if now.failed else []
    return ("warming up · " if now.warming else "") + " · ".join(parts) + f" {sparkline(rates, width)}"
