"""Processes pinned to cores, the truth server among them, and what disturbed them."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SERVER_CORE, CLIENT_CORE = 0, 1
# Before a machine's other work, as root. A client of several processes that poll must not have the
# real-time class: on one core it would lock itself out, and everybody else.
PRIORITIES = {"normal": (), "nice": ("nice", "-n", "-20"), "realtime": ("chrt", "-f", "10")}


@dataclass(frozen=True, slots=True)
class Finished:
    """A client's run: its output, CPU seconds with children, and how often it was pushed off its core."""

    code: int
    out: str
    err: str
    cpu_s: float
    wall_s: float
    pushed: int


def pinned(
    argv: Sequence[str], *, priority: str, env: dict[str, str] | None = None, limit_s: float = 240,
    core: int = CLIENT_CORE,
) -> Finished:  # fmt: skip
    """Runs a client on its core to its end, with one of the PRIORITIES."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    words = [*PRIORITIES[priority], "taskset", "-c", str(core), *argv]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})},
        start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=limit_s)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    wall = time.perf_counter() - start
    return Finished(process.returncode, out, err, cpu, wall, after.ru_nivcsw - before.ru_nivcsw)


def tireless(priority: str) -> str:
    """The priority for a process that never sleeps: the real-time class would stop it for 50 ms a second."""
    return "nice" if priority != "normal" else "normal"


@contextmanager
def truth_server(port: int, *, priority: str, seed: int = 0) -> Iterator[str]:
    """The server on its own core; yields its address."""
    words = [*PRIORITIES[tireless(priority)], "taskset", "-c", str(SERVER_CORE), sys.executable]
    words.append(str(HERE / "server.py"))
    process = subprocess.Popen([*words, "--port", str(port), "--seed", str(seed)])
    try:
        _wait_for(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit("the truth server did not start")


def records(address: str) -> list[dict[str, object]]:
    """What the server was due to send and did, since the last time it was asked."""
    with urllib.request.urlopen(f"{address}/truth", timeout=60) as answer:
        return sorted(json.load(answer), key=lambda record: record["number"])


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
