"""The journal of a loading engine tells its phases, its progress, and why it died."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_ops.engine.diagnosis import explain
from ddtree_ops.engine.phases import JournalLine, Load, Phase

LOGS = Path(__file__).parents[2] / "cases" / "logs"
CASES = sorted(LOGS.glob("*.log"))


def read(path: Path) -> list[JournalLine]:
    rows = [line.split("\t", 1) for line in path.read_text().splitlines()]
    return [JournalLine(at=float(at), text=text.replace("\\r", "\r")) for at, text in rows]


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_a_journal_reads_as_its_phases_and_its_cause_of_death(case: Path) -> None:
    expected = json.loads(case.with_suffix(".json").read_text())
    load = Load.starting(0.0).follow(read(case))
    spans = [[span.label, span.began, span.ended, span.detail] for span in load.spans]
    assert spans == expected["spans"]
    assert load.facts == expected["facts"]
    assert [load.fatal.what, load.fatal.message] == expected["fatal"] if load.fatal else not expected["fatal"]
    assert load.ready == (spans[-1][0] == "ready")
    if "progress" in expected:
        assert load.current.progress == expected["progress"]


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_an_engine_that_died_without_a_fatal_line_is_explained_by_its_last_lines(case: Path) -> None:
    expected = json.loads(case.with_suffix(".json").read_text())
    found = explain(line.text for line in read(case))
    if wanted := expected.get("explain") or expected["fatal"]:
        assert found is not None
        assert [found.what, found.message] == wanted
        assert found.hint


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_lines_may_come_in_any_portions(case: Path) -> None:
    lines = read(case)
    load = Load.starting(0.0)
    for line in lines:
        load = load.follow([line])
    assert load == Load.starting(0.0).follow(lines)


def test_elapsed_time_runs_until_the_phase_has_ended() -> None:
    load = Load.starting(0.0).follow(read(LOGS / "weights-half-way.log"))
    assert load.current.elapsed(now=212.0) == 180.0
    assert load.spans[1].elapsed(now=212.0) == 12.0


def test_a_phase_that_outlives_its_share_of_the_time_is_overdue() -> None:
    load = Load.starting(0.0).follow(read(LOGS / "weights-half-way.log")[:2])
    assert load.current.phase is Phase.DISTRIBUTED
    assert load.overdue(now=20.0 + 539.0, load_timeout_s=1800) is None
    late = load.overdue(now=20.0 + 541.0, load_timeout_s=1800)
    assert late is not None
    assert (late.what, late.message) == (
        "process group",
        "got no end of it in 541 s, expected it within 540 s",
    )
    assert "NCCL" in late.hint


def test_an_engine_that_is_ready_is_never_overdue() -> None:
    load = Load.starting(0.0).follow(read(LOGS / "kimi-k26-dflash-tp8.log"))
    assert load.overdue(now=1e9, load_timeout_s=1) is None


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(st.text(max_size=80) | st.sampled_from([line.text for line in read(CASES[0])]), max_size=12))
def test_any_lines_leave_a_load_in_order(lines: list[str]) -> None:
    load = Load.starting(0.0).follow(JournalLine(text=text, at=float(at)) for at, text in enumerate(lines))
    ends = [span.ended for span in load.spans[:-1]]
    assert ends == [span.began for span in load.spans[1:]]
