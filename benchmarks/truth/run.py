"""The truth test: every metric of our client against a known schedule, and other clients beside it.

    python benchmarks/truth/run.py                          our client at concurrency 1, 16, 128 and 512
    python benchmarks/truth/run.py --peers sglang,guidellm  the others in the same run (installs them)

The server has one core and the client another. A metric is right when it is within 1 % of the
schedule (2 % at 512). Exits 1 when one of ours is not. On a machine with other work use --priority nice
(all clients alike) or realtime (ours alone), and look at the columns `pushed` (how often the client
lost its core) and `late` (how late the server itself was). The row `loopback alone` is one
process on the server's core that sends itself such pieces, when they are due, and reads the kernel's
stamps: where its gaps are off by about the tolerance, don't expect a client to be within it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from host import (
    HERE,
    PRIORITIES,
    SERVER_CORE,
    Finished,
    free_port,
    pinned,
    records,
    tireless,
    truth_server,
)
from ideal import Run, ideal, sample
from ours import LIMITS
from peers import PEERS, Peer, install
from server import STEP_NS, Plan

from ddtree_ops.measure.client import LoadResult
from ddtree_ops.measure.metrics import Summary, spread, summarise

SPREADS = ("ttft", "e2e", "tpot", "itl", "gap", "user_rate", "step")
PARTS = ("mean", "p50", "p99")
RATES = ("output_rate", "output_rate_whole", "request_rate", "goodput")
EXACT = ("accept_token_weighted", "accept_request_weighted", "tokens")
TOLERANCE = {1: 0.01, 16: 0.01, 128: 0.01, 512: 0.02}
LOOPBACK, LOOPBACK_S = "loopback alone", 10.0
LOOPBACK_STREAMS = 16  # more would make it late by its own work


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One client at one concurrency: errors against the truth by metric, and what it cost."""

    client: str
    concurrency: int
    errors: Mapping[str, float]
    beyond: Mapping[str, float]  # the same against what the server sent, when it sent it
    delivered: float = math.nan  # share of the ideal client's tokens a second
    cpu_per_1000: float = math.nan  # s, all that the client did
    load_cpu_per_1000: float = math.nan  # s, while the load ran
    late_ms: float  # the server's own lateness, p99
    pushed: int

    @property
    def worst(self) -> tuple[str, float]:
        return _worst(self.errors)


def _worst(errors: Mapping[str, float]) -> tuple[str, float]:
    return max(errors.items(), key=lambda item: abs(item[1]), default=("", 0.0))


def load_of(concurrency: int) -> Run:
    """Enough requests to fill the percentiles, and a ramp that keeps the start from being a wall."""
    requests = {1: 16, 16: 128, 128: 640}.get(concurrency, 4 * concurrency)
    ramp = 0.0 if concurrency == 1 else 0.8
    return Run(concurrency=concurrency, requests=requests, warmup=concurrency, ramp_s=ramp)


def truth_of(done: Sequence[Mapping[str, object]], warmup: int, *, as_sent: bool = False) -> Summary:
    """The schedule of the requests that the server saw, as a summary; rates are not in it.

    With `as_sent`, what the server did in place of what was due: its own lateness is then no client's error.
    """
    samples = [
        sample(
            int(str(one["number"])),
            Plan(int(str(one["first_ns"])), tuple(one["steps"])),
            0.0,
            sent=[(stamp - one["arrived"]) / 1e9 for stamp in one["sent"]] if as_sent else None,
        )
        for one in done
        if int(str(one["number"])) >= warmup
    ]
    empty = LoadResult(samples=tuple(samples), window=(0.0, 0.0), wall_s=1.0, cpu_s=0.0, parse_cpu_s=0.0)
    return summarise(empty, LIMITS)


def lateness_ms(done: Sequence[Mapping[str, object]]) -> float:
    """How much later than due the server sent, 99th percentile."""
    late = [
        sent - one["arrived"] - one["first_ns"] - number * STEP_NS  # type: ignore[operator]
        for one in done
        for number, sent in enumerate(one["sent"])  # type: ignore[arg-type, var-annotated]
    ]
    return _p99(late) / 1e6 if late else 0.0


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


def errors_of(figures: Mapping[str, object], truth: Summary, best: Summary) -> dict[str, float]:
    """Relative errors of every metric that the client gave."""
    found: dict[str, float] = {}
    for name in SPREADS:
        measured, true = figures.get(name), asdict(getattr(truth, name))
        for part in PARTS if isinstance(measured, Mapping) else ():
            value = measured.get(part)
            if isinstance(value, int | float) and value == value:
                found[f"{name} {part}"] = value / true[part] - 1
    for source, names in ((truth, EXACT), (best, RATES)):
        for name in names:
            value, true = figures.get(name), getattr(source, name)
            if isinstance(value, int | float) and true:
                found[name] = value / true - 1
    return found


def measure_loopback(run: Run, priority: str) -> Row:
    """The machine itself: the gaps of the schedule without a server and without a client."""
    streams = min(run.concurrency, LOOPBACK_STREAMS)
    argv = (sys.executable, str(HERE / "loopback.py"), str(streams), str(LOOPBACK_S))
    done = pinned(argv, priority=tireless(priority), core=SERVER_CORE, env=_path())
    if done.code:
        raise SystemExit(done.err)
    seen = json.loads(done.out)
    gaps = spread(gap / STEP_NS for gap in seen["gaps"])
    assert gaps is not None
    return Row(
        client=LOOPBACK,
        concurrency=run.concurrency,
        errors={f"gap {part}": getattr(gaps, part) - 1 for part in PARTS},
        beyond={},
        late_ms=_p99(seen["late"]) / 1e6,
        pushed=done.pushed,
    )


def measure_ours(address: str, run: Run, route: str, name: str, priority: str) -> Row:
    records(address)
    port = address.rsplit(":", 1)[1]
    words = [sys.executable, str(HERE / "ours.py"), port, route, json.dumps(asdict(run))]
    done = pinned(words, priority=priority, env=_path())
    if done.code:
        raise SystemExit(done.err)
    return row(name, run, json.loads(done.out), records(address), done, warmup=run.warmup)


def row(
    name: str, run: Run, figures: dict[str, object], seen: Sequence[Mapping[str, object]],
    done: Finished, *, warmup: int,
) -> Row:  # fmt: skip
    """One line of the table."""
    best = summarise(ideal(run), LIMITS)
    errors = errors_of(figures, truth_of(seen, warmup), best)
    beyond = errors_of(figures, truth_of(seen, warmup, as_sent=True), best)
    tokens = float(str(figures.get("all_tokens") or 0)) or 1.0
    rate = figures.get("output_rate") or figures.get("output_rate_whole") or 0.0
    true = best.output_rate if figures.get("output_rate") else best.output_rate_whole
    return Row(
        client=name,
        concurrency=run.concurrency,
        errors=errors,
        beyond={name: error for name, error in beyond.items() if name.split()[0] in SPREADS},
        delivered=float(str(rate)) / (true or 1.0),
        cpu_per_1000=1000 * float(str(figures.get("cpu_s", done.cpu_s))) / tokens
        if "cpu_per_1000" not in figures
        else float(str(figures["cpu_per_1000"])),
        load_cpu_per_1000=float(str(figures.get("load_cpu_per_1000", "nan"))),
        late_ms=lateness_ms(seen),
        pushed=done.pushed,
    )


def measure_peer(peer: Peer, address: str, run: Run, folder: Path, start_s: float, priority: str) -> Row:
    """One peer at one concurrency; what its start-up alone costs is taken off its CPU time."""
    run = replace(run, warmup=0, ramp_s=0.0)
    records(address)
    done = pinned(peer.command(address, run, folder), priority=priority, env=dict(peer.environment))
    seen = records(address)
    if done.code:
        raise SystemExit(f"{peer.name}: {done.out[-1000:]} {done.err[-2000:]}")
    figures = peer.read(folder)
    figures["all_tokens"] = sum(int(str(one["tokens"])) for one in seen)
    figures["cpu_s"] = max(0.0, done.cpu_s - start_s)
    counted = [one for one in seen if int(str(one["number"])) >= peer.warmup]
    figures["tokens"] = float(str(figures["tokens"])) * run.requests / max(1, len(counted))
    return row(peer.name, run, figures, seen, done, warmup=peer.warmup)


def start_cpu_s(peer: Peer, address: str, folder: Path, priority: str) -> float:
    """CPU seconds of a run with a single short request, the less of two: the first one fills caches."""
    run = Run(concurrency=1, requests=1, warmup=0, tokens=8)
    words = (peer.command(address, run, folder) for _ in range(2))
    return min(pinned(argv, priority=priority, env=dict(peer.environment)).cpu_s for argv in words)


def _path() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)]), "OMP_NUM_THREADS": "1"}


def table(rows: Sequence[Row]) -> str:
    """Markdown, one line a client and concurrency."""
    names = ("ttft mean", "ttft p99", "tpot mean", "itl mean", "itl p99", "e2e mean", "output_rate_whole")
    head = (
        "client",
        "at once",
        *names,
        "worst",
        "worst beyond the server",
        "delivered",
        "CPU s/1,000",
        "under load",
        "late ms",
        "pushed",
    )
    lines = [head, ("---",) * len(head)]
    for one in rows:
        worst, beyond = (_named(_worst(errors)) if errors else "" for errors in (one.errors, one.beyond))
        cells = (f"{one.errors[n]:+.1%}" if n in one.errors else "" for n in names)
        lines.append((
            one.client, str(one.concurrency), *cells, worst, beyond, _known(one.delivered, ".0%"),
            _known(one.cpu_per_1000, ".4f"), _known(one.load_cpu_per_1000, ".4f"),
            f"{one.late_ms:.2f}", str(one.pushed),
        ))  # fmt: skip
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _named(worst: tuple[str, float]) -> str:
    return f"{worst[0]} {worst[1]:+.1%}"


def _known(value: float, form: str) -> str:
    return "" if math.isnan(value) else format(value, form)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--concurrency", default="1,16,128,512")
    options.add_argument("--peers", default="", help=f"of {', '.join(PEERS)}")
    options.add_argument("--repeats", type=int, default=1, help="of our client; the median error counts")
    options.add_argument("--priority", choices=tuple(PRIORITIES), default="normal", help="needs root")
    options.add_argument("--folder", type=Path, default=Path("/tmp/ddtree-ops-truth"), help="for the peers")
    options.add_argument("--json", type=Path, help="write every error of every metric here")
    chosen = options.parse_args()
    levels = [int(word) for word in chosen.concurrency.split(",")]
    peers = [PEERS[name] for name in chosen.peers.split(",") if name]
    if peers and chosen.priority == "realtime":
        options.error("--priority realtime is for our client alone")
    for peer in peers:
        install(peer, chosen.folder)
    rows: list[Row] = []
    priority = chosen.priority
    starts: dict[str, float] = {}
    if peers:
        with truth_server(free_port(), priority=priority) as address:
            starts = {p.name: start_cpu_s(p, address, chosen.folder / p.name, priority) for p in peers}
    for level in levels:
        run, begun = load_of(level), len(rows)
        rows.append(measure_loopback(run, priority))
        with truth_server(free_port(), priority=priority) as address:
            tries = [measure_ours(address, run, "/generate", "ours", priority) for _ in range(chosen.repeats)]
            rows.append(_median(tries))
            rows.append(measure_ours(address, run, "/v1/chat/completions", "ours, chat route", priority))
            rows += [
                measure_peer(peer, address, run, chosen.folder / peer.name, starts[peer.name], priority)
                for peer in peers
            ]
        print(table(rows[begun:]), flush=True)
    print("\n" + table(rows))
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(one) for one in rows], indent=1))
    wrong = _beyond_tolerance(row for row in rows if row.client.startswith("ours"))
    print("\nall within tolerance" if not wrong else "\nnot within tolerance:\n" + "\n".join(wrong))
    unsteady = _beyond_tolerance(row for row in rows if row.client == LOOPBACK)
    if unsteady:
        print("\nand without server and client, on this machine:\n" + "\n".join(unsteady))
    sys.exit(1 if wrong else 0)


def _beyond_tolerance(rows: Iterable[Row]) -> list[str]:
    return [
        f"{one.client} at {one.concurrency}: {name} {error:+.2%}"
        for one in rows
        for name, error in one.errors.items()
        if abs(error) > TOLERANCE.get(one.concurrency, 0.02)
    ]


def _median(tries: Sequence[Row]) -> Row:
    """The try whose worst error is the median one."""
    return sorted(tries, key=lambda one: abs(one.worst[1]))[(len(tries) - 1) // 2]


if __name__ == "__main__":
    main()
