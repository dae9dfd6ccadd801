"""A sweep's folder: what it keeps, who may write to it, and what it refuses."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ddtree_ops.measure.sweep import Cell, SweepPlan, arms
from ddtree_ops.model.errors import Refused, UsageError
from ddtree_ops.run.ledger import LEDGER, Order, open_ledger, read_sweep, span_words

ORDER = Order(
    node="gpu1",
    plan=SweepPlan(arms=arms((4, 8), (1, None), (True, False)), workloads=("code",), concurrencies=(1, 8)),
    mark="abc123",
    command="ddtree-ops sweep budgets",
    when="2026-01-01T00:00:00+00:00",
)
CELL = Cell(arm="chain", round=0, workload="code", concurrency=1, repeat=0)
ENTRY = {"kind": "cell", "data": {"cell": asdict(CELL), "values": {"user_rate": 100.0}}}


def test_what_was_asked_and_done_is_read_back_as_it_was(tmp_path: Path) -> None:
    with open_ledger(tmp_path, ORDER, resume=False) as ledger:
        ledger.begin("run-1")
        ledger.record(ENTRY)
        ledger.record({"kind": "command", "data": {"arm": "chain", "argv": "python -m sglang"}})
        expected = ledger.state
    state, setting = read_sweep(tmp_path)
    assert (state, state.plan, len(state.results)) == (expected, ORDER.plan, 1)
    assert setting.commands == ("ddtree-ops sweep budgets", "# chain\npython -m sglang")


def test_a_resumed_sweep_keeps_its_mark_its_runs_and_its_cells_and_drops_a_torn_line(tmp_path: Path) -> None:
    with open_ledger(tmp_path, ORDER, resume=True) as ledger:
        ledger.begin("run-1")
        ledger.record(ENTRY)
    with (tmp_path / LEDGER).open("a") as file:
        file.write('{"kind": "cell", "da')
    with open_ledger(tmp_path, replace(ORDER, mark="other", when="later"), resume=True) as again:
        assert (again.mark, again.runs, len(again.state.results)) == ("abc123", {"run-1"}, 1)
        again.begin("run-2")
    assert len((tmp_path / LEDGER).read_text().splitlines()) == 3


def test_a_folder_with_a_sweep_is_not_begun_anew(tmp_path: Path) -> None:
    with open_ledger(tmp_path, ORDER, resume=False):
        pass
    with pytest.raises(UsageError) as refused, open_ledger(tmp_path, ORDER, resume=False):
        pass
    assert "--resume goes on" in refused.value.hint


def test_another_sweep_is_not_resumed_and_what_differs_is_named(tmp_path: Path) -> None:
    with open_ledger(tmp_path, ORDER, resume=False):
        pass
    other = replace(ORDER, plan=replace(ORDER.plan, repeats=9))
    with (
        pytest.raises(UsageError, match="got repeats 9, expected 5"),
        open_ledger(tmp_path, other, resume=True),
    ):
        pass


def test_two_processes_do_not_write_one_ledger(tmp_path: Path) -> None:
    with (
        open_ledger(tmp_path, ORDER, resume=False),
        pytest.raises(Refused, match="a sweep at work in it"),
        open_ledger(tmp_path, ORDER, resume=True),
    ):
        pass


def test_a_folder_without_a_sweep_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a sweep's folder"):
        read_sweep(tmp_path)
    (tmp_path / "sweep.json").write_text('{"node": 1}')
    with pytest.raises(UsageError, match=r"sweep\.json:node"):
        read_sweep(tmp_path)


def test_samples_of_any_arm_have_a_plain_file_name(tmp_path: Path) -> None:
    with open_ledger(tmp_path, ORDER, resume=False) as ledger:
        name = ledger.samples_of(replace(CELL, arm="8/free eager")).name
    assert name == "8-free-eager-r0-code-c1-n0.jsonl"


@pytest.mark.parametrize(("least", "most", "words"), [(5, 100, "5 to 100 s"), (240, 5400, "4 to 90 min")])
def test_time_to_go_is_told_in_the_unit_that_fits(least: float, most: float, words: str) -> None:
    assert span_words(least, most) == words
