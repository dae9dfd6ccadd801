from __future__ import annotations

import re
from types import SimpleNamespace

from .overlay import load

stats = load("ddtree_stats")
flags = load("ddtree_flags")
TIMES = stats.StepTimes(draft_ms=0.5, build_ms=0.25, verify_ms=1.5)


def test_a_summary_is_the_same_for_every_slice_and_is_plain_data() -> None:
    summary = stats.RequestSummary()
    summary.add(3, 16, TIMES)
    summary.add(0, 12, TIMES)
    expected = {
        "verify_steps": 2,
        "accepted_depth": 1.5,
        "tree_nodes": 14.0,
        "draft_ms": 0.5,
        "build_ms": 0.25,
        "verify_ms": 1.5,
    }
    assert expected == summary[0:1]
    assert expected == summary[7:90]


def test_a_request_that_ended_in_prefill_has_an_empty_summary() -> None:
    assert stats.RequestSummary()[0:1]["verify_steps"] == 0


def test_a_step_is_added_to_each_request_that_carries_a_summary() -> None:
    carried = [SimpleNamespace(customized_info={"ddtree": stats.RequestSummary()}) for _ in range(2)]
    without = SimpleNamespace(customized_info=None)
    stats.record([carried[0], without, carried[1]], [2, 5, 1], [16, 16, 9], TIMES)
    assert [one.customized_info["ddtree"].accepted for one in carried] == [2, 1]
    assert [one.customized_info["ddtree"].nodes for one in carried] == [16, 9]


def test_the_start_up_line_gives_budget_cap_and_width_by_name() -> None:
    line = stats.ready_line(flags.TreeShape(budget=16, ranks=4, depth=7), 8, True, 48)
    found = dict(re.findall(r"(\w+)=(\w+)", line))
    assert line.startswith("DDTree ready. ")
    assert {"budget": "16", "topk_cap": "4", "verify_width": "17"}.items() <= found.items()
    assert {
        "depth": "7",
        "block_size": "8",
        "cuda_graph": "True",
        "cuda_graph_max_bs": "48",
    }.items() <= found.items()
