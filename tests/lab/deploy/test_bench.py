"""Benches of a lab node: what they count, what they leave behind, and what they refuse to measure."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable

import pytest

from ddtree_ops.lab.hosts import Kind, Lab

from .conftest import SERVICE, SMALL_GPU, Operator, first_on_path

PROMPTS = ("Write a short poem about the ocean.", "Explain how a TCP connection is opened.")


@pytest.fixture(scope="module")
def lab(fleet: Callable[[Kind, int], Lab]) -> Lab:
    return fleet(Kind.EMBEDDED, 1)


@pytest.fixture
def words(fresh: Operator) -> tuple[str, ...]:
    file = fresh.home / "known.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return ("bench", "--workload", str(file), "--fresh", "flush", "--max-tokens", "32")


def test_a_bench_counts_by_the_server_and_leaves_samples_and_tables(
    fresh: Operator, words: tuple[str, ...]
) -> None:
    before = fresh.serving()
    out = fresh.home / "out"
    ran = fresh.ops(
        *words,
        "--concurrency",
        "1,2",
        "--requests",
        "4",
        "--ttft",
        "60000",
        "--out",
        str(out),
        "--json",
        code=0,
    )
    rows = ran.node["rows"]
    assert [(row["concurrency"], row["requests"], row["tokens"]) for row in rows] == [
        (1, 4, 128),
        (2, 4, 128),
    ]
    assert all(row["accept_token_weighted"] > 2 and row["goodput"] > 0 for row in rows)
    assert {file.name for file in (out / fresh.name).iterdir()} == {
        f"known-{users}.{kind}" for users in (1, 2) for kind in ("csv", "jsonl")
    }
    with (out / "bench.csv").open() as file:
        assert [row["load"] for row in csv.DictReader(file)] == ["known ×1", "known ×2"]
    assert fresh.serving() == before


def test_a_short_load_has_a_reading_of_each_gpu(fresh: Operator, words: tuple[str, ...]) -> None:
    with first_on_path(fresh, "nvidia-smi", SMALL_GPU):
        (row,) = fresh.ops(*words, "--concurrency", "1", "--requests", "48", "--json", code=0).node["rows"]
    (gpu,) = row["gpus"]
    assert (gpu["name"], gpu["sm_clock_mhz"]["p50"], gpu["power_w"]["p50"]) == ("Small GPU", 1200, 100.0)


def test_a_poisson_load_is_measured_in_requests_a_second(fresh: Operator, words: tuple[str, ...]) -> None:
    (row,) = fresh.ops(*words, "--rate", "4", "--requests", "6", "--json", code=0).node["rows"]
    assert (row["rate"], row["concurrency"], row["requests"]) == (4.0, None, 6)


def test_an_engine_that_invents_its_accept_length_is_refused_whatever_its_unit_says(
    fresh: Operator, words: tuple[str, ...]
) -> None:
    unit = fresh.file_on_node(f"/etc/systemd/system/{SERVICE}.service")
    text = unit.read_text()
    unit.write_text(text.replace("[Service]\n", "[Service]\nEnvironment=SGLANG_SIMULATE_ACC_LEN=4\n"))
    fresh.on_node("systemctl", "daemon-reload")
    fresh.on_node("systemctl", "restart", SERVICE)
    unit.write_text(text)
    fresh.on_node("systemctl", "daemon-reload")
    while not fresh.healthy():
        time.sleep(0.2)
    try:
        error = fresh.ops(*words, "--json", code=3).json["error"]
        assert "SGLANG_SIMULATE_ACC_LEN=4" in error["message"]
    finally:
        fresh.on_node("systemctl", "restart", SERVICE)


def test_a_stopped_service_is_not_measured(fresh: Operator, words: tuple[str, ...]) -> None:
    fresh.on_node("systemctl", "stop", SERVICE)
    try:
        error = fresh.ops(*words, "--json", code=3).json["error"]
        assert "expected it to run" in error["message"]
    finally:
        fresh.on_node("systemctl", "start", SERVICE)


def test_a_client_that_the_node_lacks_is_told_in_words(fresh: Operator, words: tuple[str, ...]) -> None:
    error = fresh.ops(*words, "--driver", "sglang", "--json", code=1).json["error"]
    assert (error["what"], "No module named" in error["message"]) == ("sglang.bench_serving", True)
    assert "--driver own" in error["hint"]
