"""`sglang.bench_serving` for those who must quote it: its command, and its result in our form."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ddtree_ops.measure.metrics import Spread, Summary
from ddtree_ops.model.errors import Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchServing:
    """One run of the node's own bench_serving."""

    venv: str
    port: int
    model: str
    requests: int
    output_file: str
    concurrency: int | None = None
    rate: float | None = None
    input_tokens: int = 256
    output_tokens: int = 256

    def argv(self) -> tuple[str, ...]:
        """The command for the node; its random token ids understate acceptance."""
        words = [
            f"{self.venv}/bin/python", "-m", "sglang.bench_serving", "--backend", "sglang",
            "--host", "127.0.0.1", "--port", str(self.port), "--model", self.model,
            "--dataset-name", "random-ids", "--random-input-len", str(self.input_tokens),
            "--random-output-len", str(self.output_tokens), "--random-range-ratio", "1",
            "--num-prompts", str(self.requests), "--output-file", self.output_file, "--disable-tqdm",
        ]  # fmt: skip
        if self.concurrency is not None:
            words += ["--max-concurrency", str(self.concurrency)]
        if self.rate is not None:
            words += ["--request-rate", str(self.rate)]
        return tuple(words)


def read_bench_serving(text: str) -> Summary:
    """The last result of an output file as a Summary; figures that it does not have are None.

    Its `accept_length` is the server's lifetime mean, not this run's, and is therefore not taken.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        data = json.loads(lines[-1])
        return _summary({key: value for key, value in data.items() if isinstance(value, int | float)})
    except (IndexError, ValueError, AttributeError, KeyError) as error:
        raise Failed("sglang.bench_serving", f"got {error!r}, expected its JSON result") from error


def _summary(data: dict[str, float]) -> Summary:
    done = int(data["completed"])
    findings = ["measured by sglang.bench_serving: quantiles and windows are its own"]
    if "accept_length" in data:
        findings.append(f"its accept length {data['accept_length']:.2f} is the server's lifetime mean")
    return Summary(
        requests=done,
        outcomes=(("ok", done),),
        tokens=int(data["total_output_tokens"]),
        ttft=_spread(data, "ttft", done),
        e2e=_spread(data, "e2e_latency", done),
        tpot=_spread(data, "tpot", done),
        itl=_spread(data, "itl", done),
        gap=None,
        user_rate=None,
        step=None,
        output_rate=None,
        output_rate_whole=data["output_throughput"],
        request_rate=data["request_throughput"],
        goodput=None,
        accept_token_weighted=None,
        accept_request_weighted=None,
        cached_share=None,
        reasoning_share=None,
        visible=None,
        cpu_per_1000=None,
        client_busy=0.0,
        findings=tuple(findings),
        usable=done > 0,
    )


def _spread(data: dict[str, float], name: str, count: int) -> Spread:
    nan = float("nan")
    return Spread(
        count=count,
        mean=data[f"mean_{name}_ms"] / 1000,
        p50=data[f"median_{name}_ms"] / 1000,
        p90=data.get(f"p90_{name}_ms", nan) / 1000,
        p99=data.get(f"p99_{name}_ms", nan) / 1000,
        low=nan,
        high=nan,
    )
