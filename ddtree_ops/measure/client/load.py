"""A load of many requests: closed loop or Poisson, failures named, nothing parsed on the way."""

from __future__ import annotations

import gc
import heapq
import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ddtree_ops.measure.client.exchange import Exchange
from ddtree_ops.measure.client.reactor import Reactor
from ddtree_ops.measure.client.read import read_sample
from ddtree_ops.measure.client.routes import Prompt, Target, body, tokens_so_far
from ddtree_ops.measure.client.sample import Outcome, Sample
from ddtree_ops.measure.client.wire import request
from ddtree_ops.model.errors import Unreachable, UsageError

TICK_NS = 250_000_000
SPIN_NS = 1_200_000  # the selector sleeps in whole milliseconds; the rest of a wait is polled
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """`concurrency` users, each sending its next request when its last answer is complete."""

    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Requests arriving at random, `rate` a second on average, however long the answers take."""

    rate: float
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much to send and when to give up; `warmup` requests come first and are kept out of all figures."""

    shape: Closed | Poisson
    requests: int
    warmup: int = 0
    duration_s: float | None = None  # no new request after this; those on the wire end in peace
    ramp_s: float = 0.0  # closed loop: users start spread over this time
    stall_s: float = 120.0  # nothing for so long: the request is given up
    gone_s: float = 30.0  # failures and no success for so long: the run is given up
    keep_text: bool = True
    memory_mib: int = 2048  # unread answers beyond this are read during the run, and it says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a live view shows, four times a second."""

    at: float
    done: int
    failed: int
    total: int
    in_flight: int
    tokens: int  # so far, by the server's counts
    warming: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """Every sample of one load, and how well the client itself kept up."""

    samples: tuple[Sample, ...]
    window: tuple[float, float]  # seconds: full load, warm-up and run-out excluded
    wall_s: float
    cpu_s: float  # of this thread, while the load ran
    parse_cpu_s: float  # afterwards
    findings: tuple[str, ...] = ()
    gave_up: str = ""

    @property
    def measured(self) -> tuple[Sample, ...]:
        """The samples that count: warm-up left out."""
        return tuple(sample for sample in self.samples if not sample.warmup)


def run_load(
    target: Target,
    prompts: Iterable[Prompt],
    load: Load,
    *,
    on_tick: Callable[[Progress], None] | None = None,
) -> LoadResult:
    """Sends the load and returns what came back.

    Raises UsageError for an impossible load or an empty workload, and Unreachable when the address
    cannot be resolved; whatever the server does is in the result.
    """
    _check(load)
    try:
        with _quiet_collector():
            return _Run(target, iter(prompts), load, on_tick).go()
    except OSError as error:
        where = f"{target.host}:{target.port}"
        raise Unreachable(where, f"got {error}, expected a server", hint="ddtree-ops status") from error


def _check(load: Load) -> None:
    amount = load.shape.concurrency if isinstance(load.shape, Closed) else load.shape.rate
    if amount <= 0 or load.requests <= 0 or load.warmup < 0:
        raise UsageError(
            "load",
            f"got {amount} at once or a second, {load.requests} requests, expected more than 0 of each",
        )


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """No garbage collection inside: one of a few 10 ms would be somebody's p99."""
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


class _Run:
    def __init__(
        self,
        target: Target,
        prompts: Iterator[Prompt],
        load: Load,
        on_tick: Callable[[Progress], None] | None,
    ) -> None:
        self._target, self._load, self._on_tick = target, load, on_tick
        self._prompts = itertools.islice(prompts, load.warmup + load.requests)
        self._ready: deque[tuple[str, bytes]] = deque()
        self._issued = self._flying = self._held = self._tokens = 0
        self._failed = self._failures_in_a_row = 0
        self._done: list[Exchange] = []
        self._samples: list[Sample] = []
        self._dues: list[int] = []  # heap: when the next request may start, one entry a request
        self._origin = self._last_good = self._last_issue = 0
        self._gave_up = ""
        self._read_early = 0
        self._spin = SPIN_NS if isinstance(load.shape, Poisson) else 0

    def go(self) -> LoadResult:
        shape = self._load.shape
        with Reactor(self._target.host, self._target.port, self._finished) as self._reactor:
            self._refill(4096 if isinstance(shape, Closed) else 256)
            if not self._ready:
                raise UsageError("workload", "got 0 prompts, expected at least one")
            self._reactor.open_ahead(shape.concurrency if isinstance(shape, Closed) else 8)
            while self._reactor.turn(0.05):
                pass
            return self._measure()

    def _measure(self) -> LoadResult:
        cpu = time.thread_time()
        self._origin = self._last_good = self._last_issue = time.perf_counter_ns()
        self._plan_dues()
        self._loop()
        wall, cpu = (time.perf_counter_ns() - self._origin) / 1e9, time.thread_time() - cpu
        parse = time.thread_time()
        while self._done:
            self._read(self._done.pop())
        self._samples.sort(key=lambda sample: sample.index)
        return LoadResult(
            samples=tuple(self._samples),
            window=self._window(),
            wall_s=wall,
            cpu_s=cpu,
            parse_cpu_s=time.thread_time() - parse,
            findings=self._findings(cpu / wall if wall else 0.0),
            gave_up=self._gave_up,
        )

    def _plan_dues(self) -> None:
        shape, total = self._load.shape, self._load.warmup + self._load.requests
        if isinstance(shape, Closed):
            step = self._load.ramp_s * SECOND / shape.concurrency
            starts = range(min(shape.concurrency, total))
            self._dues = [self._origin + int(step * slot) for slot in starts]
        else:
            draw, at = random.Random(shape.seed), float(self._origin)
            for _ in range(total):
                at += draw.expovariate(shape.rate) * SECOND
                self._dues.append(int(at))

    def _loop(self) -> None:
        next_tick = self._origin + TICK_NS
        while self._flying or self._dues:
            now = time.perf_counter_ns()
            due = self._dues[0] - self._spin if self._dues else next_tick
            handled = self._reactor.turn(max(0, min(next_tick, due) - now) / 1e9)
            now = time.perf_counter_ns()
            self._start_due(now)
            if not handled:
                self._refill(1)
            if now >= next_tick:
                next_tick = now + TICK_NS
                self._tick(now)

    def _start_due(self, now: int) -> None:
        while self._dues and self._dues[0] <= now:
            due = heapq.heappop(self._dues)
            if not self._issue(due if self._spin else now):
                self._dues.clear()

    def _issue(self, due: int) -> bool:
        """Starts the next request; False when there is none left to start."""
        if not self._ready:
            self._refill(1)
        late = self._load.duration_s is not None and due > self._origin + self._load.duration_s * SECOND
        if not self._ready or late or self._gave_up:
            return False
        prompt, wire = self._ready.popleft()
        index, self._issued, self._last_issue = self._issued, self._issued + 1, due
        self._flying += 1
        self._reactor.start(Exchange(index, prompt, wire, due=due, warmup=index < self._load.warmup))
        return True

    def _refill(self, amount: int) -> None:
        host = f"{self._target.host}:{self._target.port}"
        path, token = self._target.route.value, self._target.api_key
        for prompt in itertools.islice(self._prompts, amount):
            wire = request("POST", host, path, body(self._target, prompt), token)
            self._ready.append((prompt.id, wire))

    def _finished(self, exchange: Exchange) -> None:
        """Called by the reactor; closed-loop users go on at once, or after a pause when it failed."""
        self._flying -= 1
        self._done.append(exchange)
        self._held += exchange.held()
        good = exchange.outcome is Outcome.OK and exchange.head is not None and exchange.head.status == 200
        if good:
            self._last_good, self._failures_in_a_row = exchange.ended, 0
            self._show(exchange)
        else:
            self._failed += 1
            self._failures_in_a_row += 1
        if isinstance(self._load.shape, Closed):
            if good and self._issue(time.perf_counter_ns()):
                return
            if not good:
                heapq.heappush(self._dues, exchange.ended + self._pause(exchange))

    def _pause(self, exchange: Exchange) -> int:
        asked = exchange.head.retry_after_s if exchange.head else None
        return int(min(30.0, 0.5 if asked is None else asked) * SECOND)

    def _tick(self, now: int) -> None:
        """Looks after stalls, a server that is gone, memory and the live view."""
        live = self._reactor.live
        for exchange in live:
            last = exchange.stamps[-1] if exchange.stamps else exchange.sent or exchange.due
            if now - last > self._load.stall_s * SECOND:
                self._reactor.stop(exchange, Outcome.STALLED, f"nothing arrived for {self._load.stall_s:g} s")
            else:
                self._show(exchange)
        silent = now - self._last_good > self._load.gone_s * SECOND
        if silent and self._failures_in_a_row and not any(exchange.stamps for exchange in live):
            self._give_up(live)
        while self._held > self._load.memory_mib << 20 and self._done:
            self._read_early += 1
            self._read(self._done.pop())
        if self._on_tick is not None:
            self._on_tick(self._progress(now))

    def _give_up(self, live: list[Exchange]) -> None:
        self._gave_up = (
            f"no request succeeded for {self._load.gone_s:g} s while {self._failures_in_a_row} failed"
        )
        self._dues.clear()
        for exchange in live:
            self._reactor.stop(exchange, Outcome.CUT, "the run was given up")
        self._dues.clear()

    def _show(self, exchange: Exchange) -> None:
        for piece in reversed(exchange.pieces[-3:]):
            if seen := tokens_so_far(piece):
                self._tokens += max(0, seen - exchange.shown)
                exchange.shown = max(seen, exchange.shown)
                return

    def _progress(self, now: int) -> Progress:
        return Progress(
            at=(now - self._origin) / 1e9,
            done=len(self._done) + len(self._samples),
            failed=self._failed,
            total=self._load.warmup + self._load.requests,
            in_flight=self._flying,
            tokens=self._tokens,
            warming=len(self._done) + len(self._samples) < self._load.warmup,
        )

    def _read(self, exchange: Exchange) -> None:
        self._held -= exchange.held()
        route, text = self._target.route, self._load.keep_text
        self._samples.append(read_sample(exchange, route, self._origin, keep_text=text))

    def _window(self) -> tuple[float, float]:
        """From the first measured start to the last start; to the last end when that is too short."""
        measured = [sample for sample in self._samples if not sample.warmup]
        if not measured:
            return 0.0, 0.0
        start = min(sample.start for sample in measured)
        last = (self._last_issue - self._origin) / 1e9
        shape = self._load.shape
        users = shape.concurrency if isinstance(shape, Closed) else 1
        if len(measured) >= 2 * users and last > start:
            return start, last
        return start, max(sample.end for sample in measured)

    def _findings(self, busy: float) -> tuple[str, ...]:
        found = [self._gave_up] if self._gave_up else []
        if busy > 0.85:
            found.append(f"the client used {busy:.0%} of its core: what it sends may be late")
        if self._read_early:
            found.append(f"{self._read_early} answers were read during the run to save memory")
        measured = sum(not sample.warmup for sample in self._samples)
        if measured < self._load.requests and not self._gave_up and self._load.duration_s is None:
            found.append(f"the workload had prompts for {measured} of {self._load.requests} requests")
        lag = max((sample.lag for sample in self._samples), default=0.0)
        if lag > 0.05:
            found.append(f"a request was sent {lag * 1000:.0f} ms later than due")
        return tuple(found)
