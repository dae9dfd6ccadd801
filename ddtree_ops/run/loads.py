"""Loads on a node's engine, through the tunnel: templated prompts in, figures out, a live line meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice

from ddtree_ops.engine.chat_template import ChatTemplate
from ddtree_ops.engine.http import EngineClient
from ddtree_ops.engine.prompts import Prompter
from ddtree_ops.measure.client import Closed, Load, LoadResult, Poisson, Progress, Prompt, Target, run_load
from ddtree_ops.measure.gpu import GpuLoad, gpu_loads, refuse_simulated
from ddtree_ops.measure.metrics import Limits, Summary, summarise
from ddtree_ops.measure.terminal import sparkline
from ddtree_ops.measure.workload import Workload, prompts
from ddtree_ops.model.errors import OpsError, Refused
from ddtree_ops.model.facts import Gpu
from ddtree_ops.model.profile import Profile
from ddtree_ops.run.context import NodeRun

LIVE_S = 1.0  # between two lines of the live view
GPU_S = 10.0  # between two readings, which cost a probe each
FIRST_GPU_S = 1.0  # so that a short load has one, too
LEAST_REQUESTS = 16


class Fresh(StrEnum):
    """How it is made sure that no prefix cache shortens the prompts."""

    FLUSH = "flush"  # an empty cache before each load
    UNIQUE = "unique"  # no two prompts begin alike


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """What every load of a bench or sweep has in common."""

    requests: int | None = None  # None: what the load's shape and time call for
    seconds: float | None = None
    max_tokens: int | None = None  # None: the workload's own
    temperature: float = 0.0
    fresh: Fresh = Fresh.UNIQUE
    ignore_eos: bool = False
    limits: Limits | None = None  # what a request must keep to count as good
    warmup: int | None = None  # None: one request a user, at most 8

    def load(self, shape: Closed | Poisson) -> Load:
        users = shape.concurrency if isinstance(shape, Closed) else 8
        warmup = min(8, users) if self.warmup is None else self.warmup
        return Load(shape=shape, requests=self._count(shape), warmup=warmup, duration_s=self.seconds)

    def _count(self, shape: Closed | Poisson) -> int:
        if self.requests is not None:
            return self.requests
        if isinstance(shape, Poisson):
            return max(LEAST_REQUESTS, int(1.5 * shape.rate * (self.seconds or 60.0)))
        return max(LEAST_REQUESTS, shape.concurrency * (int(self.seconds) if self.seconds else 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One load's outcome."""

    result: LoadResult
    summary: Summary
    gpus: tuple[GpuLoad, ...] = ()


@dataclass(slots=True, kw_only=True)
class Loader:
    """Sends loads to the engine of one run; made by `loader`."""

    run: NodeRun
    client: EngineClient
    prompter: Prompter
    port: int
    spec: LoadSpec
    notes: tuple[str, ...] = ()
    _ids: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def measure(
        self, workload: Workload, shape: Closed | Poisson, *, mark: str, start: int = 0, label: str = ""
    ) -> Measured:
        """Runs one load; `mark` makes its prompts unique, `start` says where in the workload they begin."""
        load = self.spec.load(shape)
        if self.spec.fresh is Fresh.FLUSH:
            self.client.flush_cache()
            mark = ""
        told = label or f"{workload.name} {shape_words(shape)}"
        self.run.world.screen.progress(self.run.name, f"{told}: prompts")
        ready = self._prompts(workload, load.warmup + load.requests, mark, start)
        target = Target(
            host="127.0.0.1",
            port=self.port,
            temperature=self.spec.temperature,
            ignore_eos=self.spec.ignore_eos,
            api_key=self.client.api_key or "",
        )
        with _gpu_readings(self.run) as readings:
            result = run_load(target, ready, load, on_tick=_Live(self.run, told))
        return Measured(result=result, summary=summarise(result, self.spec.limits), gpus=gpu_loads(readings))

    def warm(self, workload: Workload, users: int, *, mark: str, label: str) -> Measured:
        """A first load of one request a user, at most 8."""
        few = replace(self.spec, requests=min(8, users), warmup=0, seconds=None)
        warmer = replace(self, spec=few)
        return warmer.measure(workload, Closed(concurrency=min(8, users)), mark=mark, label=label)

    def _prompts(self, workload: Workload, count: int, mark: str, start: int) -> list[Prompt]:
        """The prompts with their templated token ids, asked for before the load begins."""
        drawn = list(
            islice(prompts(workload, mark=mark, max_tokens=self.spec.max_tokens, start=start), count)
        )
        texts = [text for text in dict.fromkeys(one.text for one in drawn) if text not in self._ids]
        if mark:
            self._ids.clear()
        for text in texts[:1]:
            self._ids[text] = self.prompter.ids(text).ids
        with ThreadPoolExecutor(8) as pool:
            for text, found in zip(texts[1:], pool.map(self.prompter.ids, texts[1:]), strict=True):
                self._ids[text] = found.ids
        return [replace(one, input_ids=self._ids[one.text]) for one in drawn]


@contextmanager
def loader(run: NodeRun, profile: Profile, spec: LoadSpec) -> Iterator[Loader]:
    """Opens the tunnel for loads; Refused where the engine would invent its accept length."""
    refuse_simulated_engine(run, profile)
    template = ChatTemplate.from_files(dict(run.known().model_files))
    with run.tunnel(profile) as port, run.client(profile, port) as client:
        prompter = Prompter(client=client, template=template)
        yield Loader(run=run, client=client, prompter=prompter, port=port, spec=spec)


def refuse_simulated_engine(run: NodeRun, profile: Profile) -> None:
    """Raises Refused when profile or running process have SGLang's simulated acceptance on."""
    where = f"{profile.service}.service"
    refuse_simulated(dict(profile.environment), where=where)
    pid = run.node.observe().unit.main_pid
    if not pid:
        raise Refused("bench", f"got {where} without a process, expected it to run", node=run.name)
    argv = ("grep", "-z", "-a", "SIMULATE_ACC_LEN=", f"/proc/{pid}/environ")
    words = run.link.run(argv, timeout_s=30.0).stdout.decode(errors="replace").split("\0")
    pairs = (word.partition("=") for word in words if "=" in word)
    refuse_simulated({name: value for name, _, value in pairs}, where=where)


def shape_words(shape: Closed | Poisson) -> str:
    """`×8`, or `2.5/s`."""
    return f"×{shape.concurrency}" if isinstance(shape, Closed) else f"{shape.rate:g}/s"


class _Live:
    """The load's live line: a sparkline of the output rate, and how far it has come."""

    def __init__(self, run: NodeRun, label: str) -> None:
        self._run, self._label = run, label
        self._rates: list[float] = []
        self._at, self._tokens = 0.0, 0

    def __call__(self, progress: Progress) -> None:
        passed = progress.at - self._at
        if passed < LIVE_S:
            return
        self._rates.append(max(0.0, (progress.tokens - self._tokens) / passed))
        self._at, self._tokens = progress.at, progress.tokens
        failed = f", {progress.failed} failed" if progress.failed else ""
        self._run.world.screen.progress(
            self._run.name,
            f"{self._label}: {sparkline(self._rates, 24)} {self._rates[-1]:,.0f} tok/s, "
            f"{progress.done}/{progress.total} requests{failed}",
        )


@contextmanager
def _gpu_readings(run: NodeRun) -> Iterator[list[tuple[Gpu, ...]]]:
    """A list that fills with the GPUs' state beside a load; it stays empty on a node without GPUs."""
    readings: list[tuple[Gpu, ...]] = []
    if not run.known().gpus:
        yield readings
        return
    over = threading.Event()

    def read() -> None:
        while not over.wait(GPU_S if readings else FIRST_GPU_S):
            with suppress(OpsError):  # a reading less; what ends the link ends the load too
                readings.append(run.node.probe(venv="").gpus)

    thread = threading.Thread(target=read, name=f"gpus of {run.name}", daemon=True)
    thread.start()
    try:
        yield readings
    finally:
        over.set()
        thread.join()
