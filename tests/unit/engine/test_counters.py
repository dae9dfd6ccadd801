"""An engine's numbers are found by key, whatever else its answers hold."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.engine.counters import Sample, metrics, server_info, total
from ddtree_ops.engine.decode_log import DecodeBatch, decode_batch

CASES = Path(__file__).parents[2] / "cases"
INFO = json.loads((CASES / "server_info" / "dflash-0.5.11.json").read_text())
SAMPLES = metrics((CASES / "metrics" / "sglang-0.5.11.txt").read_text())


def test_server_info_gives_each_ranks_counters() -> None:
    info = server_info(INFO)
    assert (info.version, info.model, info.draft_tokens) == ("0.5.11", "/models/Kimi-K2.6", 8)
    assert [rank.accept_length for rank in info.ranks] == [5.0, 4.0]
    assert info.accept_length == 4.5
    assert info.ranks[0].memory_gb == {"weight": 76.3, "kvcache": 77.25, "graph": 1.1}
    assert info.ranks[0].token_capacity == 1180416


def test_server_info_keeps_no_secret_and_no_token_count_is_taken_for_one() -> None:
    info = server_info(INFO)
    assert "sk-do-not-show" not in repr(info)
    assert "hunter2" not in repr(info)
    assert info.arguments["max_total_num_tokens"] == 1180416
    assert info.arguments["tokenizer_path"] == "/models/Kimi-K2.6"


def test_an_engine_that_tells_nothing_has_no_counters() -> None:
    info = server_info({"internal_states": [{}, "odd"], "version": 5})
    assert (info.version, info.accept_length, len(info.ranks)) == (None, None, 1)
    assert server_info({}).ranks == ()


def test_metrics_are_read_with_their_labels() -> None:
    names = [sample.name for sample in SAMPLES]
    assert names == [
        "sglang:spec_accept_length",
        "sglang:generation_tokens_total",
        "sglang:generation_tokens_total",
        "sglang:e2e_request_latency_seconds_bucket",
        "sglang:odd",
    ]
    assert SAMPLES[1].labels == {"model_name": 'a "quoted" na\\me, with {braces}'}
    assert SAMPLES[3] == Sample(
        name="sglang:e2e_request_latency_seconds_bucket", labels={"le": "+Inf", "model_name": "b"}, value=12.0
    )
    assert math.isnan(SAMPLES[4].value)


def test_a_metric_is_summed_over_its_labels() -> None:
    assert total(SAMPLES, "sglang:generation_tokens_total") == 1500.0
    assert total(SAMPLES, "sglang:absent") is None


@pytest.mark.parametrize("case", json.loads((CASES / "metrics" / "decode-lines.json").read_text()))
def test_a_decode_line_is_read_by_its_keys(case: dict[str, Any]) -> None:
    expected = None if case["read"] is None else DecodeBatch(**case["read"])
    assert decode_batch(case["line"]) == expected
