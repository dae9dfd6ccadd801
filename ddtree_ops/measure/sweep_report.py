"""What a sweep, an isolation or two sweeps have to say, as reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddtree_ops.measure.charts import frontier
from ddtree_ops.measure.decide import Decision, Ranked, decision
from ddtree_ops.measure.isolate import Conclusion, Trial
from ddtree_ops.measure.isolate import table as trial_rows
from ddtree_ops.measure.metrics import Summary
from ddtree_ops.measure.report import Chart, Level, Point, Report, Series, Table, number, span
from ddtree_ops.measure.statistics import Interval, say_ratio, unpaired_ratio
from ddtree_ops.measure.sweep import ArmKind, State

LABELS = {
    "user_rate": "tokens/s per user",
    "output_rate": "tokens/s in total",
    "ttft_ms": "TTFT, ms",
    "tpot_ms": "TPOT, ms",
    "step_ms": "ms per step",
    "accept_token_weighted": "accept length (token-weighted)",
    "accept_request_weighted": "accept length (request-weighted)",
}
METHOD = (
    "Arms ran in rounds, there and back, so that a drift of the node charges all alike.",
    "The baseline ran in every round.",
    "Every arm of a round had the same prompts, made unique so that no prefix cache could help.",
    "Tokens are the server's own counts; warm-up is left out; rates are those of full load.",
    "Accept length is completion_tokens / spec_verify_ct of each request, bonus token included.",
    "Token-weighted accept length is the ratio of sums, request-weighted the mean of ratios.",
    "Intervals over cells are 95 %, by Student's t; workloads and concurrencies weigh alike.",
    "Intervals between arms are by least squares over rounds, with the noise of all arms pooled.",
    "An arm that crashed, garbled or accepted nothing is a result, and is not ranked.",
)
UNPAIRED = (
    "The sweeps ran at different times: what drifted between them is in the ratios.",
    "Medians of one configuration have been seen 20 % apart between days.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where a sweep ran and how it was called."""

    node: str
    when: str
    environment: tuple[tuple[str, str], ...] = ()  # GPU, driver, SGLang, patches, …
    commands: tuple[str, ...] = ()  # ours, and each arm's own


def cell_values(summary: Summary) -> dict[str, float]:
    """A cell's figures by name, as the ledger keeps them; what the server did not tell is left out."""
    found = {
        "user_rate": summary.user_rate.p50 if summary.user_rate else None,
        "output_rate": summary.output_rate or summary.output_rate_whole,
        "ttft_ms": summary.ttft.p50 * 1000 if summary.ttft else None,
        "tpot_ms": summary.tpot.p50 * 1000 if summary.tpot else None,
        "step_ms": summary.step.p50 * 1000 if summary.step else None,
        "accept_token_weighted": summary.accept_token_weighted,
        "accept_request_weighted": summary.accept_request_weighted,
    }
    return {name: value for name, value in found.items() if value is not None}


def sweep_report(state: State, setting: Setting) -> Report:
    """The report of one sweep, finished or not."""
    made = decision(state)
    said = (
        made.sentences
        if made.final
        else ("This sweep has not ended: the figures may change.", *made.sentences)
    )
    return Report(
        title=f"Which budget to run on {setting.node}",
        subtitle=f"{setting.when} · {len(state.plan.arms)} arms, {len(state.results)} cells, "
        f"{made.restarts} restarts",
        decision=said,
        charts=_charts(state, made),
        tables=_tables(state, made, setting),
        commands=setting.commands,
        method=METHOD + ((made.drift.words[:1].upper() + made.drift.words[1:] + ".",) if made.drift else ()),
    )


def _charts(state: State, made: Decision) -> tuple[Chart, ...]:
    names = [state.plan.objective, "accept_token_weighted", "step_ms"]
    over = [_over_budget(state, made, name) for name in dict.fromkeys(names)]
    pareto = _pareto(state, made)
    return tuple(chart for chart in (*over, pareto) if chart.series)


def _over_budget(state: State, made: Decision, figure: str) -> Chart:
    trees = [arm for arm in state.plan.arms if arm.kind is ArmKind.TREE]
    budgets = sorted({arm.budget or 0 for arm in trees})
    groups: dict[str, list[Point]] = {}
    levels = []
    for ranked in made.ranking:
        interval = ranked.figures.get(figure)
        if interval is None:
            continue
        if ranked.arm.kind is not ArmKind.TREE:
            levels.append(Level(name=ranked.arm.id, y=interval.value))
            continue
        name = f"top-k {ranked.arm.topk or 'free'}{'' if ranked.arm.graphs else ', eager'}"
        place = budgets.index(ranked.arm.budget or 0)
        groups.setdefault(name, []).append(_point(place, interval, ranked.arm.id))
    by_id = {arm.id: arm for arm in trees}
    crosses = tuple(
        (float(budgets.index(by_id[failure.arm].budget or 0)), f"{failure.arm}: {failure.kind}")
        for failure in made.failures
        if failure.arm in by_id
    )
    series = [
        Series(name=name, points=tuple(sorted(points, key=lambda p: p.x)))
        for name, points in sorted(groups.items())
    ]
    label = LABELS.get(figure, figure)
    return Chart(
        title=f"{label[:1].upper()}{label[1:]} over budget",
        x_label="budget (draft-tree nodes)",
        y_label=label,
        series=tuple(series),
        levels=tuple(levels),
        ticks=tuple(map(str, budgets)),
        crosses=crosses,
        note="Bars are 95 % intervals over cells. A cross marks a budget at which an arm failed."
        if crosses
        else "Bars are 95 % intervals over cells.",
    )


def _point(x: float, interval: Interval, name: str) -> Point:
    ends = span(interval.low, interval.high)
    low, high = (interval.low, interval.high) if interval.known else (None, None)
    return Point(
        x=x,
        y=interval.value,
        low=low,
        high=high,
        label=f"{name}: {number(interval.value)}" + (ends and f" ({ends})"),
    )


def _pareto(state: State, made: Decision) -> Chart:
    """One point an arm and concurrency: what a user waits for a token, and what the node gives in all."""
    series = []
    for users in state.plan.concurrencies:
        points = []
        for ranked in made.ranking:
            values = [
                result.values
                for result in state.results
                if (result.cell.arm, result.cell.concurrency) == (ranked.arm.id, users)
            ]
            both = [v for v in values if "tpot_ms" in v and "output_rate" in v]
            if both:
                x, y = (sum(v[name] for v in both) / len(both) for name in ("tpot_ms", "output_rate"))
                told = f"{ranked.arm.id}: {number(x)} ms, {number(y)} tokens/s"
                points.append(Point(x=x, y=y, label=told))
        series.append(Series(name=f"{users} at once", points=tuple(points), joined=False))
    best = frontier([point for one in series for point in one.points])
    names = ", ".join(dict.fromkeys(point.label.split(":")[0] for point in best))
    return Chart(
        title="Latency against throughput",
        x_label="TPOT, ms (less is better)",
        y_label="tokens/s in total",
        series=tuple(one for one in series if one.points),
        named=best,
        note=f"No arm is better on both axes than: {names}." if best else "",
    )


def _tables(state: State, made: Decision, setting: Setting) -> tuple[Table, ...]:
    tables = [_ranking(state, made)]
    if made.failures:
        rows = tuple((f.arm, f.kind, f.diagnosis, f.first_wrong) for f in made.failures)
        tables.append(
            Table(
                title="Arms that failed", columns=("arm", "how", "diagnosis", "first wrong token"), rows=rows
            )
        )
    if setting.environment:
        tables.append(Table(title="Environment", columns=("what", "value"), rows=setting.environment))
    return tuple(tables)


def _ranking(state: State, made: Decision) -> Table:
    figures = [name for name in LABELS if any(name in ranked.figures for ranked in made.ranking)]
    columns = (
        "arm",
        f"times {state.plan.baseline}",
        "95 %",
        *(LABELS[n] for n in figures),
        "visits",
        "cells",
        "verdict",
    )
    rows = tuple(_row(ranked, figures) for ranked in made.ranking)
    return Table(title="Arms, best first", columns=columns, rows=rows)


def _row(ranked: Ranked, figures: Sequence[str]) -> tuple[str, ...]:
    ratio = ranked.to_baseline
    return (
        ranked.arm.id,
        number(ratio.value) if ratio else "1" if ranked.arm.kind is ArmKind.CHAIN else "",
        span(ratio.low, ratio.high) if ratio else "",
        *(number(ranked.figures[name].value) if name in ranked.figures else "" for name in figures),
        str(ranked.visits),
        str(ranked.cells),
        ranked.note,
    )


def isolate_report(trials: Sequence[Trial], conclusion: Conclusion, setting: Setting) -> Report:
    """Conclusion first, then the table of trials."""
    columns = ("setup", "one request", "several at once", "after a prefix hit", "accept length", "evidence")
    tables = [Table(title="Trials, in order", columns=columns, rows=trial_rows(trials))]
    if setting.environment:
        tables.append(Table(title="Environment", columns=("what", "value"), rows=setting.environment))
    return Report(
        title=f"What breaks the output on {setting.node}",
        subtitle=f"{setting.when} · {conclusion.restarts} restarts",
        decision=(conclusion.sentence[:1].upper() + conclusion.sentence[1:] + ".",),
        tables=tuple(tables),
        commands=setting.commands,
        method=(
            "One or two factors changed at a time; each trial was the one that could still tell most apart.",
        ),
    )


def compare(before: tuple[State, Setting], after: tuple[State, Setting]) -> Report:
    """Two sweeps side by side: what changed in the arms that both ran, and in what they ran on."""
    (old, old_setting), (new, new_setting) = before, after
    made = decision(old), decision(new)
    scores = [{arm: _scores(state, arm) for arm in state.running} for state in (old, new)]
    shared = [arm for arm in scores[0] if scores[0][arm] and scores[1].get(arm)]
    ratios = {arm: unpaired_ratio(scores[1][arm], scores[0][arm]) for arm in shared}
    winners = [d.winner.id if d.winner else "nothing" for d in made]
    same = winners[0] == winners[1]
    said = [f"Both recommend {winners[0]}." if same else f"Before: {winners[0]}. After: {winners[1]}."]
    for arm in dict.fromkeys(winners):
        if arm in ratios:
            told = say_ratio(ratios[arm], f"{arm} after", "before", "cells")
            said.append(told[:1].upper() + told[1:] + ".")
    rows = tuple(_change(arm, ratios[arm]) for arm in shared)
    columns = ("arm", "after / before", "95 %", "verdict")
    return Report(
        title=f"{old_setting.node} before and after",
        subtitle=f"{old_setting.when} · {new_setting.when}",
        decision=tuple(said),
        tables=(
            Table(title="Arms that both measured", columns=columns, rows=rows),
            _differences(old_setting.environment, new_setting.environment),
        ),
        method=UNPAIRED,
    )


def _scores(state: State, arm: str) -> list[list[float]]:
    """The objective's values of all visits, by workload and concurrency."""
    visits = [values for (name, _), values in state.table.items() if name == arm]
    return [[value for group in groups for value in group] for groups in zip(*visits, strict=True)]


def _change(arm: str, ratio: Interval) -> tuple[str, ...]:
    shown = ratio.known and 1.0 not in ratio
    word = ("faster" if ratio.value > 1 else "slower") if shown else "no difference shown"
    return arm, number(ratio.value), span(ratio.low, ratio.high), word


def _differences(old: Sequence[tuple[str, str]], new: Sequence[tuple[str, str]]) -> Table:
    first: Mapping[str, str] = dict(old)
    second: Mapping[str, str] = dict(new)
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    rows = tuple((name, first.get(name, "not told"), second.get(name, "not told")) for name in names)
    return Table(
        title="What differs between the two",
        columns=("what", "before", "after"),
        rows=rows,
        note="" if rows else "Nothing that was recorded.",
    )
