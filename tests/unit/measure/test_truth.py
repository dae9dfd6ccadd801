"""The truth server of benchmarks/truth, and what the client counts against it (times are the benchmark's)."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from ddtree_ops.measure.client import Closed, Load, Prompt, Route, Target, run_load
from ddtree_ops.measure.metrics import summarise

SERVER = Path(__file__).parents[3] / "benchmarks" / "truth" / "server.py"


@pytest.fixture
def truth():
    """The port of a truth server of our own."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(SERVER), "--port", str(port)])
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    yield port
    process.terminate()
    process.wait()


@pytest.mark.parametrize("route", [Route.NATIVE, Route.CHAT, Route.COMPLETIONS])
def test_every_token_and_step_of_the_schedule_is_counted(truth, route):
    """Tokens, arrivals and accept lengths are those that the server planned, on each route."""
    load = Load(shape=Closed(concurrency=6), requests=12)
    prompts = [Prompt(id=str(n), text=f"say {n}", max_tokens=40) for n in range(12)]
    result = run_load(Target(host="127.0.0.1", port=truth, route=route), prompts, load)
    with urllib.request.urlopen(f"http://127.0.0.1:{truth}/truth", timeout=30) as answer:
        planned = json.load(answer)
    summary = summarise(result)
    assert summary.outcomes == (("ok", 12),)
    assert summary.tokens == sum(one["tokens"] for one in planned) == 12 * 40
    steps = sorted([1, *one["steps"]] for one in planned)
    counted = sorted(
        [after - before for (_, before), (_, after) in zip(((0, 0), *s.arrivals), s.arrivals, strict=False)]
        for s in result.samples
    )
    assert counted == steps
    if route is Route.NATIVE:
        assert summary.accept_token_weighted == 12 * 40 / sum(len(one["steps"]) for one in planned)
    else:
        assert summary.accept_token_weighted is None
