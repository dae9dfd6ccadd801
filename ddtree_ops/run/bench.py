"""A bench of what a node runs now: loads through the tunnel, or SGLang's own client on the node."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from ddtree_ops.measure.client import Closed, Poisson
from ddtree_ops.measure.foreign import BenchServing, read_bench_serving
from ddtree_ops.measure.gpu import GpuLoad
from ddtree_ops.measure.metrics import Summary
from ddtree_ops.measure.record import samples_csv, samples_jsonl, write_file
from ddtree_ops.measure.workload import workload
from ddtree_ops.model.errors import Failed, Refused
from ddtree_ops.model.profile import Profile
from ddtree_ops.model.release import Gate
from ddtree_ops.run import resolve
from ddtree_ops.run.context import NodeRun
from ddtree_ops.run.loads import LoadSpec, loader, refuse_simulated_engine, shape_words

FOREIGN_TIMEOUT_S = 3600.0
GATE_WORKLOADS = ("code", "chat")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOrder:
    """What to measure: every workload in every shape."""

    workloads: tuple[str, ...]
    shapes: tuple[Closed | Poisson, ...]
    spec: LoadSpec
    out: Path | None = None  # a folder for raw samples and tables


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One load's figures."""

    workload: str
    shape: Closed | Poisson
    summary: Summary
    gpus: tuple[GpuLoad, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.workload} {shape_words(self.shape)}"

    def fields(self) -> dict[str, object]:
        """The row as JSON shows it."""
        users = self.shape.concurrency if isinstance(self.shape, Closed) else None
        rate = self.shape.rate if isinstance(self.shape, Poisson) else None
        shape = {"workload": self.workload, "concurrency": users, "rate": rate}
        return {**shape, **asdict(self.summary), "gpus": [asdict(gpu) for gpu in self.gpus]}


def bench(run: NodeRun, order: BenchOrder) -> tuple[BenchRow, ...]:
    """Measures what the node runs; nothing is changed but the prefix cache. Raw samples go to `order.out`."""
    sources = [workload(name) for name in order.workloads]
    rows = []
    mark = uuid.uuid4().hex[:6]
    with loader(run, _served(run), order.spec) as load:
        for number, source in enumerate(sources):
            for place, shape in enumerate(order.shapes):
                start = 10_000 * (number * len(order.shapes) + place)
                found = load.measure(source, shape, mark=mark, start=start)
                row = BenchRow(workload=source.name, shape=shape, summary=found.summary, gpus=found.gpus)
                rows.append(row)
                if order.out is not None:
                    place_of = order.out / f"{source.name}-{shape_words(shape).strip('×').replace('/', 'p')}"
                    write_file(Path(f"{place_of}.jsonl"), samples_jsonl(found.result.samples))
                    write_file(Path(f"{place_of}.csv"), samples_csv(found.result.samples))
    return tuple(rows)


def bench_foreign(run: NodeRun, order: BenchOrder) -> tuple[BenchRow, ...]:
    """The same by `sglang.bench_serving` in the node's venv, whose prompts are random tokens."""
    profile = _served(run)
    refuse_simulated_engine(run, profile)
    return tuple(_foreign_row(run, profile, order, shape) for shape in order.shapes)


def bench_gate(run: NodeRun, profile: Profile, _timeout_s: float) -> Gate:
    """A short bench as one verdict, for playbooks that judge by it."""
    began = run.world.clock.monotonic()
    rows = []
    with loader(run, profile, LoadSpec()) as load:
        for name in GATE_WORKLOADS:
            shape = Closed(concurrency=1)
            found = load.measure(workload(name), shape, mark=run.id)
            rows.append(BenchRow(workload=name, shape=shape, summary=found.summary))
    return Gate(
        name="bench",
        passed=all(row.summary.usable for row in rows),
        evidence="; ".join(_told(row) for row in rows),
        seconds=run.world.clock.monotonic() - began,
    )


def _served(run: NodeRun) -> Profile:
    facts = run.known()
    if not facts.unit.running:
        raise Refused(
            "bench", f"got {facts.unit.name} {facts.unit.active}, expected it to run", node=run.name
        )
    if facts.guard is not None:
        run.world.screen.warn(run.name, f"run {facts.guard.run} is changing this node while it is measured")
    return resolve.running_profile(facts, run.node.service)


def _told(row: BenchRow) -> str:
    summary = row.summary
    speed = f"{summary.user_rate.p50:.0f} tok/s a user" if summary.user_rate else "no rate"
    accept = summary.accept_token_weighted
    told = f"{row.label}: {speed}" + (f", accept length {accept:.2f}" if accept else "")
    return told if summary.usable else f"{told} ({'; '.join(summary.findings)})"


def _foreign_row(run: NodeRun, profile: Profile, order: BenchOrder, shape: Closed | Poisson) -> BenchRow:
    path = f"/tmp/ddtree-ops-bench-{uuid.uuid4().hex}.jsonl"
    ordered = order.spec.load(shape)
    asked = BenchServing(
        venv=profile.venv,
        port=profile.port,
        model=profile.model,
        requests=ordered.requests,
        output_file=path,
        concurrency=shape.concurrency if isinstance(shape, Closed) else None,
        rate=shape.rate if isinstance(shape, Poisson) else None,
        output_tokens=order.spec.max_tokens or 256,
    )
    run.world.screen.step(run.name, "bench", f"sglang.bench_serving {shape_words(shape)} on the node")
    try:
        done = run.link.run(asked.argv(), timeout_s=FOREIGN_TIMEOUT_S)
        if done.code != 0:
            said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
            last = said[-1] if said else "no word why"
            raise Failed(
                "sglang.bench_serving",
                f"got exit {done.code}, expected 0: {last}",
                hint="the node's venv must have all that it imports; --driver own needs nothing there",
                node=run.name,
            )
        text = run.link.run(("cat", path), timeout_s=60.0).stdout.decode(errors="replace")
    finally:
        run.link.run(("rm", "-f", path), timeout_s=60.0)
    if order.out is not None:
        write_file(order.out / f"bench_serving-{shape_words(shape).strip('×').replace('/', 'p')}.json", text)
    return BenchRow(workload="random-ids", shape=shape, summary=read_bench_serving(text))
