"""Benches as reports, and the line that is shown while one runs."""

from __future__ import annotations

from ddtree_ops.measure.bench_report import Measured, bench_report, live_line
from ddtree_ops.measure.client import LoadResult, Outcome, Progress, Sample
from ddtree_ops.measure.gpu import GpuLoad
from ddtree_ops.measure.metrics import Limits, Spread, summarise
from ddtree_ops.measure.sweep_report import Setting

SETTING = Setting(node="n1", when="2026-11-29", environment=(("SGLang", "0.5.11"),))
GOOD = Sample(
    index=0, prompt="a", start=0.0, end=1.1, outcome=Outcome.OK, tokens=21, verify_steps=5,
    arrivals=((0.1, 1), (0.6, 11), (1.1, 21)),
)  # fmt: skip


def summary(*samples):
    result = LoadResult(samples=samples, window=(0.0, 1.2), wall_s=1.2, cpu_s=0.0, parse_cpu_s=0.0)
    return summarise(result, Limits(ttft_s=1.0))


def tick(at, tokens, **more):
    fields = {"done": 1, "failed": 0, "total": 4, "in_flight": 2, "warming": False}
    return Progress(at=at, tokens=tokens, **{**fields, **more})


def test_each_load_is_a_row_with_latencies_in_milliseconds():
    """TTFT 100 ms, step 200 ms, accept length 4.2, under the columns that say so."""
    report = bench_report([Measured(workload="poem", load="1 at once", summary=summary(GOOD))], SETTING)
    row = dict(zip(report.tables[0].columns, report.tables[0].rows[0], strict=True))
    assert (row["TTFT p50"], row["ms per step"], row["accept length (token-weighted)"]) == (
        "100",
        "200",
        "4.2",
    )
    assert report.decision == (
        "poem, 1 at once: 17.5 tokens/s in total, accept length 4.2 (token-weighted).",
    )
    assert report.charts[0].named[0].label.startswith("1 at once")


def test_findings_follow_their_load_and_forbid_comparing():
    """A load that failed says so in the first lines."""
    lost = Sample(index=0, prompt="a", start=0.0, outcome=Outcome.LOST, detail="ECONNREFUSED")
    report = bench_report([Measured(workload="poem", load="1 at once", summary=summary(lost))], SETTING)
    assert report.decision[0] == "poem, 1 at once: no tokens/s in total. Not to be compared."
    assert report.decision[1] == "1 of 1 requests: lost: ECONNREFUSED."
    assert report.charts == ()


def test_gpus_stand_beside_their_load():
    """Clock, power, temperature and memory, with their extremes."""
    clock = Spread(count=2, mean=1500, p50=1500, p90=1900, p99=1990, low=1000, high=2000)
    gpu = GpuLoad(
        index=0, name="H200", sm_clock_mhz=clock, power_w=None, temperature_c=None, memory_used_mib=None
    )
    measured = Measured(workload="poem", load="1 at once", summary=summary(GOOD), gpus=(gpu,))
    row = bench_report([measured], SETTING).tables[1].rows[0]
    assert row == ("poem", "1 at once", "0: H200", "1,500 (1,000–2,000)", "", "", "")


def test_the_live_line_shows_rate_and_state():
    """Tokens a second over the last second, what failed, and whether it still warms up."""
    assert live_line([]) == "starting"
    line = live_line([tick(0.0, 0), tick(0.25, 25), tick(0.5, 75, failed=1)])
    assert line == "1/4 · 2 under way · 150 tokens/s · 1 failed ▅█"
    assert live_line([tick(0.0, 0, warming=True)]).startswith("warming up · 1/4")
