"""One request: what it asks for, what it has got so far, and where its keys and values lie."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .model import Floats, Ints
from .tokenizer import END, Tokenizer

GREEDY = 1e-6  # SGLang treats temperatures below this as zero


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters, by the names of `/generate`."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_new_tokens: int = 128
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    sampling_seed: int | None = None

    @classmethod
    def read(cls, given: dict[str, Any]) -> Sampling:
        """From a JSON object; unknown parameters are ignored, impossible values raise ValueError."""
        kept = {k: v for k, v in given.items() if k in cls.__dataclass_fields__ and v is not None}
        stop = kept.get("stop", ())
        kept["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
        kept["stop_token_ids"] = tuple(kept.get("stop_token_ids", ()))
        sampling = cls(**kept)
        if sampling.temperature < 0:
            raise ValueError(f"temperature must be non-negative, got {sampling.temperature}.")
        if not 0 < sampling.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {sampling.top_p}.")
        if sampling.top_k != -1 and sampling.top_k < 1:
            raise ValueError(f"top_k must be -1 (disable) or at least 1, got {sampling.top_k}.")
        if sampling.max_new_tokens < 0:
            raise ValueError(f"max_new_tokens must be at least 0, got {sampling.max_new_tokens}.")
        return sampling

    def choose(self, logits: Floats, rng: np.random.Generator) -> int:
        """The target's own choice for one row of logits."""
        if self.temperature < GREEDY or self.top_k == 1:
            return int(logits.argmax())
        scaled = logits.astype(np.float64) / self.temperature
        odds = np.exp(scaled - scaled.max())
        if self.top_k > 0:
            odds[odds < np.partition(odds, -self.top_k)[-self.top_k]] = 0.0
        odds /= odds.sum()
        if self.top_p < 1:
            order = np.argsort(-odds, kind="stable")
            ahead = np.cumsum(odds[order]) - odds[order]
            odds[order[ahead >= self.top_p]] = 0.0
        bounds = np.cumsum(odds)
        return int(np.searchsorted(bounds, rng.random() * bounds[-1], side="right"))


@dataclass(slots=True, eq=False)
class Request:
    """A running or waiting request. `slots` are those of `tokens` without the last, in order."""

    rid: str
    prompt: list[int]
    sampling: Sampling
    rng: np.random.Generator
    output: list[int] = field(default_factory=list)
    slots: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    cached: int = 0  # prompt tokens whose slots the prefix cache gave
    held: int = 0  # leading slots that the prefix cache holds for this request
    verify_steps: int = 0
    histogram: list[int] = field(default_factory=list)  # steps by drafts accepted
    finish: dict[str, Any] | None = None
    # tokens so far, at each step; None after the last, which alone says that there is no more
    events: queue.SimpleQueue[int | None] = field(default_factory=queue.SimpleQueue)
    aborted: bool = False
    started: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    ended: float | None = None

    @property
    def tokens(self) -> list[int]:
        """Prompt and output."""
        return self.prompt + self.output

    @property
    def last(self) -> int:
        """The newest token, whose keys and values are not yet computed."""
        return self.output[-1] if self.output else self.prompt[-1]

    def commit(self, tokens: Sequence[int], slots: Ints, tokenizer: Tokenizer) -> int:
        """Appends tokens up to where the request ends, with as many slots; returns how many were taken."""
        count = 0
        for token in tokens:
            count += 1
            self.output.append(token)
            self.finish = self._finish(token, tokenizer)
            if self.finish:
                break
        self.slots = np.concatenate([self.slots, slots[:count]])
        self.first_token = self.first_token or time.perf_counter()
        return count

    def _finish(self, token: int, tokenizer: Tokenizer) -> dict[str, Any] | None:
        s = self.sampling
        if token in s.stop_token_ids or (token == END and not s.ignore_eos):
            return {"type": "stop", "matched": token}
        if s.stop:
            text = tokenizer.decode(self.output)
            for stop in s.stop:
                if stop in text:
                    return {"type": "stop", "matched": stop}
        if len(self.output) >= s.max_new_tokens:
            return {"type": "length", "length": len(self.output)}
        return None

    def text(self, tokenizer: Tokenizer, upto: int | None = None) -> str:
        """The output as text, without a matched stop string and without a half-received character."""
        text = tokenizer.decode(self.output[:upto])
        cuts = [text.index(stop) for stop in self.sampling.stop if stop in text]
        if cuts:
            return text[: min(cuts)]
        return text if self.finish and upto in (None, len(self.output)) else text.rstrip("�")
