"""Runs our client once against the truth server and prints its summary as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from ideal import Run

from ddtree_ops.measure.client import Closed, Load, Prompt, Route, Target, run_load
from ddtree_ops.measure.metrics import Limits, summarise

LIMITS = Limits(ttft_s=0.2)


def main() -> None:
    """argv: port, route, and the run as JSON."""
    port, route, text = sys.argv[1:]
    run = Run(**json.loads(text))
    target = Target(host="127.0.0.1", port=int(port), route=Route(route))
    prompts = [
        Prompt(id="truth", text=f"Request {n}.", max_tokens=run.tokens)
        for n in range(run.requests + run.warmup)
    ]
    load = Load(
        shape=Closed(concurrency=run.concurrency), requests=run.requests, warmup=run.warmup,
        ramp_s=run.ramp_s, keep_text=False,
    )  # fmt: skip
    result = run_load(target, prompts, load)
    figures = asdict(summarise(result, LIMITS))
    tokens = sum(sample.tokens or 0 for sample in result.samples)
    load_cpu = 1000 * result.cpu_s / tokens
    print(json.dumps(figures | {"all_tokens": tokens, "load_cpu_per_1000": load_cpu}))


if __name__ == "__main__":
    main()
