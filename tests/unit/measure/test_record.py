"""Results on disk, on a disk that may be full or have been cut off in mid-line."""

from __future__ import annotations

import csv
import io
import json
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from ddtree_ops.measure.client import Outcome, Sample
from ddtree_ops.measure.foreign import BenchServing, read_bench_serving
from ddtree_ops.measure.gpu import gpu_loads, refuse_simulated
from ddtree_ops.measure.record import append_line, mend, read_lines, samples_csv, samples_jsonl, write_file
from ddtree_ops.model.errors import Failed, Refused, UsageError
from ddtree_ops.model.facts import Gpu

SIMULATED = [("3.5", True), ("yes", True), ("0", False), ("-1", False), ("", False)]
CASES = Path(__file__).parents[2] / "cases"
SAMPLE = Sample(index=0, prompt="a", start=0.0, outcome=Outcome.OK, tokens=3, arrivals=((0.5, 1), (1.5, 3)))


@pytest.fixture
def full_disk():
    """Files of this process may not grow past 100 bytes, as on a disk without room."""
    import signal

    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, old)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_ledger_gives_back_what_was_appended(tmp_path):
    """Lines come back in order."""
    for number in range(3):
        append_line(tmp_path / "deep" / "cells.jsonl", {"n": number})
    assert read_lines(tmp_path / "deep" / "cells.jsonl") == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_a_torn_last_line_is_left_out_and_mended(tmp_path):
    """A crash in mid-write costs its own line and no other."""
    path = tmp_path / "cells.jsonl"
    path.write_text('{"n": 0}\n{"n": 1, "x')
    assert read_lines(path) == [{"n": 0}]
    mend(path)
    append_line(path, {"n": 2})
    assert read_lines(path) == [{"n": 0}, {"n": 2}]


def test_damage_elsewhere_is_an_error_with_its_line(tmp_path):
    """Only the last line may be torn."""
    path = tmp_path / "cells.jsonl"
    path.write_text('{"n": 0}\nrubbish\n{"n": 1}\n')
    with pytest.raises(UsageError) as caught:
        read_lines(path)
    assert f"{path}:2" in str(caught.value)


def test_a_line_that_does_not_fit_is_taken_back(tmp_path, full_disk):
    """A full disk leaves the ledger as it was, and says so."""
    path = tmp_path / "cells.jsonl"
    append_line(path, {"n": 0})
    with pytest.raises(Failed, match="expected to write the results") as caught:
        append_line(path, {"n": "x" * 200})
    assert caught.value.hint == f"df -h {tmp_path}"
    assert read_lines(path) == [{"n": 0}]


def test_a_file_that_does_not_fit_leaves_the_old_one(tmp_path, full_disk):
    """Reports are replaced whole or not at all."""
    write_file(tmp_path / "report.md", "old")
    with pytest.raises(Failed):
        write_file(tmp_path / "report.md", "x" * 200)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("report.md", "old")]


def test_samples_go_to_jsonl_with_their_arrivals_and_to_csv_with_derived_figures():
    """JSONL is complete; CSV is what a spreadsheet wants."""
    assert json.loads(samples_jsonl([SAMPLE]))["arrivals"] == [[0.5, 1], [1.5, 3]]
    row = next(csv.DictReader(io.StringIO(samples_csv([SAMPLE]))))
    assert (row["ttft"], row["e2e"], row["tokens"], row["outcome"]) == ("0.5", "1.5", "3", "ok")


def test_bench_serving_is_read_into_our_form(tmp_path):
    """The last line of its file becomes a Summary; its lifetime accept length does not."""
    fields = {f"{kind}_{name}_ms": 100.0 for kind in ("mean", "median", "p99")
              for name in ("ttft", "e2e_latency", "tpot", "itl")}  # fmt: skip
    fields |= {
        "completed": 4,
        "total_output_tokens": 80,
        "output_throughput": 40.0,
        "request_throughput": 2.0,
    }
    summary = read_bench_serving("{}\n" + json.dumps(fields | {"accept_length": 3.3, "backend": "sglang"}))
    assert (summary.tokens, summary.ttft.mean, summary.output_rate_whole) == (80, 0.1, 40.0)
    assert summary.accept_token_weighted is None
    assert "its accept length 3.30 is the server's lifetime mean" in summary.findings


def test_a_file_that_bench_serving_wrote_is_read():
    """What 0.5.11 wrote of a lab node's engine, its lists and the server's arguments taken out."""
    summary = read_bench_serving((CASES / "bench_serving" / "0.5.11.jsonl").read_text())
    assert (summary.requests, summary.tokens, round(summary.output_rate_whole, 1)) == (8, 384, 199.1)
    assert (round(summary.ttft.p50, 4), round(summary.tpot.p50, 4), round(summary.itl.p99, 4)) == (
        0.024,
        0.0195,
        0.0284,
    )


@pytest.mark.parametrize("text", ["", "nonsense", "[1]", "{}"])
def test_a_result_that_bench_serving_did_not_finish_is_an_error(text):
    """No result is an error, not a row of zeros."""
    with pytest.raises(Failed, match="expected its JSON result"):
        read_bench_serving(text)


def test_the_command_of_bench_serving_is_words():
    """argv, with the load's shape as its flags."""
    argv = BenchServing(venv="/v", port=1, model="/m", requests=9, output_file="/o", concurrency=3).argv()
    assert argv[:3] == ("/v/bin/python", "-m", "sglang.bench_serving")
    assert argv[-2:] == ("--max-concurrency", "3")


@pytest.mark.parametrize(
    ("value", "refused"), [("3.5", True), ("yes", True), ("0", False), ("-1", False), ("", False)]
)
def test_simulated_acceptance_is_refused(value, refused):
    """SGLang invents accept lengths when the value is above 0."""
    environment = {"SGLANG_SIMULATE_ACC_LEN": value}
    if not refused:
        refuse_simulated(environment, where="n1")
        return
    with pytest.raises(Refused, match="accept length would be invented"):
        refuse_simulated(environment, where="n1")


def test_gpu_readings_are_summed_up_by_gpu():
    """Two readings of one GPU make one line with their spread."""
    gpu = Gpu(
        index=0, name="H200", arch="sm_90", driver="1", memory_total_mib=10, memory_used_mib=5, link="none"
    )
    readings = [[replace(gpu, sm_clock_mhz=clock)] for clock in (1000, 2000)]
    (load,) = gpu_loads(readings)
    assert (load.sm_clock_mhz.mean, load.power_w, load.memory_used_mib.high) == (1500, None, 5)
