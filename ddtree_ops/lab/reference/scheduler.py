"""The scheduler thread: admits requests, runs passes, counts, and prints SGLang's batch lines."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections import deque
from typing import Any

import numpy as np

from . import log
from .request import Request
from .runner import Runner

PREFILL_TOKENS = 4096  # most prompt tokens of one prefill pass
HEALTH_RID = "HEALTH_CHECK"  # how SGLang names the requests that it asks itself


class Counters:
    """What `/server_info`, `/metrics` and the batch lines are made of."""

    def __init__(self) -> None:
        self.prompt_tokens = self.generated_tokens = self.cached_tokens = self.requests = 0
        self.throughput = 0.0
        self.reset()

    def reset(self) -> None:
        """What `/flush_cache` resets."""
        self.steps = self.window_tokens = 0
        self.accepted = self.verified = self.total_accepted = self.total_verified = 0
        self.accept_length = self.accept_rate = 0.0


class Scheduler(threading.Thread):
    """Owns the runner; everything else talks to it through `submit`, `abort` and `flush`."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(name="scheduler", daemon=True)
        self.runner, self.args = runner, runner.args
        self.counters = Counters()
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.silent = threading.Event()  # the hang-serving fault, from the moment it is set
        self.last_output = 0.0
        self._wake = threading.Condition()
        self._decode_tic = self._prefill_tic = time.perf_counter()
        self._admitted = 0

    def submit(self, request: Request) -> None:
        """Queues a request; its `events` say how many tokens it has after each step."""
        with self._wake:
            self.waiting.append(request)
            self._wake.notify()

    def abort(self, request: Request) -> None:
        """Ends a request whose client is gone at the next step."""
        with self._wake:
            request.aborted = True
            if request in self.waiting:
                self.waiting.remove(request)

    @property
    def load(self) -> int:
        """Requests that wait or run."""
        return len(self.waiting) + len(self.running)

    def flush(self) -> bool:
        """Empties the prefix cache and resets the counters; False while requests wait or run."""
        with self._wake:
            if self.load:
                log.engine.warning(
                    "Cache not flushed because there are pending requests. #queue-req: %d, #running-req: %d",
                    len(self.waiting),
                    len(self.running),
                )
                return False
            self.runner.cache.clear()
            self.counters.reset()
        log.engine.info("Cache flushed successfully!")
        return True

    def run(self) -> None:
        """Steps while there is work; an exception ends the process as SGLang's does."""
        try:
            while True:
                with self._wake:
                    self._wake.wait_for(lambda: self.load and not self.silent.is_set())
                    batch = self._admit()
                if batch:
                    self._prefill(batch)
                if self.running:
                    self._step()
                with self._wake:
                    self._retire()
        except Exception:  # whatever it is, a scheduler dies of it, and says so
            self.crash(traceback.format_exc())

    def crash(self, trace: str) -> None:
        """The end of a process whose scheduler failed while serving."""
        log.engine.error("Scheduler hit an exception: %s", trace)
        log.engine.error("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        os.kill(os.getpid(), signal.SIGKILL)

    def _admit(self) -> list[Request]:
        """Waiting requests that fit beside the running ones, first come first served."""
        batch: list[Request] = []
        limit, tokens = int(self.args.max_running_requests or 1), 0
        while self.waiting and len(self.running) + len(batch) < limit:
            request = self.waiting[0]
            promised = sum(map(self._promise, [*self.running, *batch, request]))
            tokens += len(request.prompt)
            if (batch and tokens > PREFILL_TOKENS) or promised > self.runner.pool.size:
                break
            batch.append(self.waiting.popleft())
        self.running += batch
        return batch

    def _promise(self, request: Request) -> int:
        rows = self.runner.rows if self.runner.draft else 1
        return len(request.prompt) + request.sampling.max_new_tokens + rows

    def _prefill(self, batch: list[Request]) -> None:
        self._admitted += sum(not request.rid.startswith(HEALTH_RID) for request in batch)
        die_after = self.runner.faults.die_after
        if die_after is not None and self._admitted > die_after:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.runner.prefill(batch)
        counters, cached = self.counters, sum(request.cached for request in batch)
        new = sum(len(request.prompt) for request in batch) - cached
        counters.requests += len(batch)
        counters.prompt_tokens += new + cached
        counters.cached_tokens += cached
        now = time.perf_counter()
        log.engine.info(
            "Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: %d, token usage: %.2f, "
            "#running-req: %d, #queue-req: %d, #pending-token: 0, cuda graph: False, "
            "input throughput (token/s): %.2f",
            *(len(batch), new, cached, self.usage()[1], len(self.running) - len(batch), len(self.waiting)),
            new / max(now - self._prefill_tic, 1e-9),
        )
        self._prefill_tic = now
        self._tell(batch, before=0)

    def _step(self) -> None:
        live = [request for request in self.running if not request.finish and not request.aborted]
        if not live:
            return
        before = sum(len(request.output) for request in live)
        graph = self.runner.verify(live) if self.runner.draft else self.runner.decode(live)
        counters = self.counters
        if self.runner.draft:
            counters.accepted += sum(len(request.output) for request in live) - before
            counters.verified += len(live)
        counters.steps += 1
        self._tell(live, before=before)
        if counters.steps % self.args.decode_log_interval == 0:
            self._report(len(live), graph)

    def _tell(self, requests: list[Request], *, before: int) -> None:
        fresh = sum(len(request.output) for request in requests) - before
        self.counters.window_tokens += fresh
        self.counters.generated_tokens += fresh
        self.last_output = time.monotonic()
        for request in requests:
            if not request.finish:
                request.events.put(len(request.output))

    def _retire(self) -> None:
        for request in [r for r in self.running if r.finish or r.aborted]:
            self.running.remove(request)
            self.runner.finish(request)
            request.finish = request.finish or {"type": "abort", "message": "Aborted"}
            request.ended = time.perf_counter()
            request.events.put(len(request.output))
            request.events.put(None)

    def _report(self, running: int, graph: bool) -> None:
        c, now = self.counters, time.perf_counter()
        c.throughput = c.window_tokens / max(now - self._decode_tic, 1e-9)
        self._decode_tic, c.window_tokens = now, 0
        accept = ""
        if self.runner.draft:
            drafts = int(self.args.speculative_num_draft_tokens or 2) - 1
            c.accept_length = c.accepted / c.verified
            c.accept_rate = (c.accepted - c.verified) / (c.verified * drafts)
            c.total_accepted += c.accepted
            c.total_verified += c.verified
            c.accepted = c.verified = 0
            accept = f"accept len: {c.accept_length:.2f}, accept rate: {c.accept_rate:.2f}, "
        used, share = self.usage()
        log.engine.info(
            "Decode batch, #running-req: %d, #token: %d, token usage: %.2f, %scuda graph: %s, "
            "gen throughput (token/s): %.2f, #queue-req: %d",
            *(running, used, share, accept, graph, c.throughput, len(self.waiting)),
        )

    def usage(self) -> tuple[int, float]:
        """(slots that running requests hold, their share of the pool)."""
        used = sum(len(request.slots) for request in self.running)
        return used, used / self.runner.pool.size

    def state(self) -> dict[str, Any]:
        """One entry of `internal_states`."""
        c, pool = self.counters, self.runner.pool
        values = self.args.as_dict()
        values["last_gen_throughput"] = c.throughput
        values["memory_usage"] = {
            "weight": 0.01,
            "kvcache": round(sum(layer.nbytes for layer in pool.layers) / 2**30, 2),
            "token_capacity": pool.size,
            "graph": 0.0,
        }
        values["effective_max_running_requests_per_dp"] = self.args.max_running_requests
        if c.total_verified:
            values["avg_spec_accept_length"] = c.total_accepted / c.total_verified
        return values


def generator(server_seed: int | None, number: int, seed: int | None) -> np.random.Generator:
    """A request's own random numbers: from its sampling_seed, else from the server's seed and its number."""
    return np.random.default_rng(seed if seed is not None else [server_seed or 0, number])
