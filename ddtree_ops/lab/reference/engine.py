"""The engine behind the routes: takes prompts, hands out tokens as they come, knows its state."""

from __future__ import annotations

import itertools
import queue
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from .request import Request, Sampling
from .runner import Runner
from .scheduler import HEALTH_RID, Scheduler, generator

HEALTH_S = 20.0  # SGLang's limit for any sign of life
POLL_S = 0.25


class Engine:
    """One loaded model with its scheduler."""

    def __init__(self, runner: Runner, version: str) -> None:
        self.runner, self.args, self.version = runner, runner.args, version
        self.tokenizer = runner.tokenizer
        self.scheduler = Scheduler(runner)
        self.ready = self.draining = self.unhealthy = False
        self._numbers = itertools.count()

    def start(
        self, prompt: list[int], sampling: Sampling, *, rid: str | None = None, bounded: bool = True
    ) -> Request:
        """Queues a request; `bounded` False means as many tokens as the context has room for.

        ValueError says what is wrong with the prompt, in SGLang's words where it has them.
        """
        context, size = int(self.args.context_length or 0), self.tokenizer.size
        if not prompt:
            raise ValueError("The input_ids or text must not be empty.")
        if not all(type(token) is int and 0 <= token < size for token in prompt):
            raise ValueError(f"The input_ids must be integers in [0, {size}).")
        if len(prompt) >= context:
            raise ValueError(
                f"The input ({len(prompt)} tokens) is longer than the model's "
                f"context length ({context} tokens)."
            )
        room = context - len(prompt)
        wanted = sampling.max_new_tokens if bounded else room
        sampling = Sampling(**{**_values(sampling), "max_new_tokens": max(1, min(wanted, room))})
        rng = generator(self.args.random_seed, next(self._numbers), sampling.sampling_seed)
        request = Request(rid=rid or uuid.uuid4().hex, prompt=prompt, sampling=sampling, rng=rng)
        self.scheduler.submit(request)
        return request

    def follow(self, request: Request, gone: Callable[[], bool]) -> Iterator[int]:
        """How many tokens the request has, at each step to its end; aborts it when the client is gone."""
        try:
            while (tokens := _next(request, gone)) is not None:
                yield tokens
        finally:
            if not request.ended:
                self.scheduler.abort(request)

    def complete(self, request: Request, gone: Callable[[], bool]) -> Request:
        """Waits for the request's end."""
        for _ in self.follow(request, gone):
            pass
        return request

    def healthy(self) -> bool:
        """Whether the scheduler gave any output within the limit; asks for one token."""
        asked = time.monotonic()
        request = self.start(
            [0], Sampling(temperature=0, max_new_tokens=1), rid=f"{HEALTH_RID}_{time.time()}"
        )
        while time.monotonic() < asked + HEALTH_S:
            if request.ended or self.scheduler.last_output > asked:
                self.unhealthy = False
                return True
            time.sleep(0.02)
        self.scheduler.abort(request)
        self.unhealthy = True
        return False

    def meta(self, request: Request, tokens: int) -> dict[str, Any]:
        """`meta_info` of a request that has `tokens` tokens so far."""
        done = request.finish if tokens == len(request.output) and request.ended else None
        meta: dict[str, Any] = {
            "id": request.rid,
            "finish_reason": done,
            "prompt_tokens": len(request.prompt),
            "weight_version": "default",
            "total_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": tokens,
            "cached_tokens": request.cached,
            "dp_rank": None,
        }
        if done:
            meta["e2e_latency"] = (request.ended or 0.0) - request.started
            if request.verify_steps:
                meta |= self._speculation(request)
        return meta

    def _speculation(self, request: Request) -> dict[str, Any]:
        steps, histogram = request.verify_steps, request.histogram
        proposed = steps * (int(self.args.speculative_num_draft_tokens or 2) - 1)
        return {
            "spec_accept_rate": sum(histogram) / proposed,
            "spec_accept_length": len(request.output) / steps,
            "spec_accepted_drafts": sum(histogram),
            "spec_proposed_drafts": proposed,
            "spec_verify_ct": steps,
            "spec_accept_histogram": [histogram.count(n) for n in range(max(histogram) + 1)],
        }


def _values(sampling: Sampling) -> dict[str, Any]:
    return {name: getattr(sampling, name) for name in Sampling.__dataclass_fields__}


def _next(request: Request, gone: Callable[[], bool]) -> int | None:
    """The next count of tokens, None after the last; raises when the client is gone meanwhile."""
    while True:
        try:
            return request.events.get(timeout=POLL_S)
        except queue.Empty:
            if gone():
                raise ConnectionAbortedError from None
