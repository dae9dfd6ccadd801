"""A sweep's decision: who won, by how much, how sure that is, and why the others did not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ddtree_ops.measure import race as racing
from ddtree_ops.measure.statistics import Drift, Interval, drift, grouped_interval, say_ratio
from ddtree_ops.measure.sweep import (
    STUCK,
    Arm,
    ArmFailure,
    ArmKind,
    State,
    lineup,
    standing,
    stop_reason,
)

Figures = Mapping[str, Interval]  # by name, over all cells of an arm


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One arm that worked. Ratios pair the arm with the other in rounds that both ran in."""

    arm: Arm
    effect: float  # the objective, round effects taken out (geometric mean over cells)
    visits: int
    cells: int
    to_baseline: Interval | None
    to_best: Interval | None
    figures: Figures
    note: str  # "best", "no difference shown to the best", or why it is out


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a sweep can say so far; `final` once no further cell is needed."""

    final: bool
    winner: Arm | None
    sentences: tuple[str, ...]
    ranking: tuple[Ranked, ...]
    failures: tuple[ArmFailure, ...]
    drift: Drift | None
    stopped: str
    restarts: int
    noise: float | None  # of one visit: 0.05 is five per cent


def decision(state: State) -> Decision:
    """The decision that this state supports; failed arms are listed and never ranked."""
    visits = state.visits()
    race = racing.race(visits, state.running)
    contenders = standing(state, visits)
    reason = stop_reason(state, visits, contenders)
    finished = _finished(state)
    ranking = _ranking(state, race, contenders) if race else ()
    winner = ranking[0].arm if ranking else None
    return Decision(
        final=finished,
        winner=winner,
        sentences=_sentences(state, ranking, reason if finished else ""),
        ranking=ranking,
        failures=tuple(state.failures.values()),
        drift=drift(_by_round(state, state.plan.baseline)),
        stopped=reason if finished else "",
        restarts=len(state.deploys) or len(visits),
        noise=race.noise if race else None,
    )


def judge_acceptance(arm: Arm, accept_length: float | None) -> ArmFailure | None:
    """A speculating arm that accepts nothing is a failure with a diagnosis, however fast it is."""
    if arm.kind is ArmKind.AUTOREGRESSIVE or accept_length is None or accept_length > STUCK:
        return None
    return ArmFailure(
        arm=arm.id,
        kind="stuck",
        diagnosis=f"accept length {accept_length:.2f} (token-weighted): no drafted token is accepted",
    )


def _finished(state: State) -> bool:
    last = max((result.cell.round for result in state.results), default=-1)
    return lineup(state, last + 1) is None if last >= 0 else not state.running


def _by_round(state: State, arm: str) -> dict[int, float]:
    return {visit.round: math.exp(visit.score) for visit in state.visits() if visit.arm == arm}


def _ranking(state: State, race: racing.Race, contenders: tuple[str, ...]) -> tuple[Ranked, ...]:
    by_id = {arm.id: arm for arm in state.plan.arms}
    base, ranked = state.plan.baseline, []
    for place in race.standings:
        figures, cells = _figures(state, place.arm)
        ranked.append(
            Ranked(
                arm=by_id[place.arm],
                effect=math.exp(place.effect),
                visits=place.visits,
                cells=cells,
                to_baseline=race.ratio(place.arm, base) if place.arm != base else None,
                to_best=race.ratio(place.arm, race.leader) if place.arm != race.leader else None,
                figures=figures,
                note=_note(place, race, contenders),
            )
        )
    return tuple(ranked)


def _note(place: racing.Standing, race: racing.Race, contenders: tuple[str, ...]) -> str:
    if place.arm == race.leader:
        return "best"
    behind = f"{-math.expm1(-place.behind):.1%} behind"
    if place.arm in contenders:
        return f"no difference shown to {race.leader} ({behind})"
    return f"cannot win: {behind} after {place.visits} {_times(place.visits)}"


def _times(count: int) -> str:
    return "visit" if count == 1 else "visits"


def _figures(state: State, arm: str) -> tuple[dict[str, Interval], int]:
    """Every figure of an arm, its cells grouped by workload and concurrency."""
    groups: dict[str, dict[tuple[str, int], list[float]]] = {}
    cells = [result for result in state.results if result.cell.arm == arm]
    for result in cells:
        key = result.cell.workload, result.cell.concurrency
        for name, value in result.values.items():
            if value > 0:
                groups.setdefault(name, {}).setdefault(key, []).append(value)
    return {name: grouped_interval(list(found.values())) for name, found in groups.items()}, len(cells)


def _sentences(state: State, ranking: tuple[Ranked, ...], reason: str) -> tuple[str, ...]:
    """The decision for a reader in a hurry, best first."""
    if not ranking:
        return ("No arm worked: there is nothing to recommend.",)
    best = ranking[0]
    said = [f"Run {best.arm.id}."]
    if best.to_baseline is not None:
        said.append(_capital(say_ratio(best.to_baseline, best.arm.id, state.plan.baseline)) + ".")
    elif best.arm.id == state.plan.baseline:
        said.append("No arm beats the baseline.")
    close = [other for other in ranking[1:] if other.note.startswith("no difference")]
    if close:
        names = ", ".join(other.arm.id for other in close)
        said.append(f"No difference shown between {best.arm.id} and {names}.")
    if state.failures:
        names = ", ".join(f"{failure.arm} ({failure.kind})" for failure in state.failures.values())
        said.append(f"Failed and not ranked: {names}.")
    said.append(f"Measuring ended since {reason}." if reason else "Measuring has not ended.")
    return tuple(said)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
