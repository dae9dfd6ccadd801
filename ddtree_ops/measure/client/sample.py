"""What one request did, as raw figures; everything else is computed from these."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How a request ended; only OK counts for latency and acceptance."""

    OK = "ok"
    OVERLOADED = "overloaded"  # 429 or 503
    HTTP_ERROR = "http-error"
    ERROR_BODY = "error-body"  # status 200, and an error inside
    EARLY_END = "early-end"  # the stream stopped without a finish reason
    STALLED = "stalled"  # nothing arrived for too long
    LOST = "lost"  # connection refused, reset or closed without an answer
    CUT = "cut"  # the run ended first; neither good nor bad


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request. Times are seconds from the run's start; `arrivals` pairs each with the tokens so far.

    Token counts are the server's own (`meta_info` or `usage`), never chunks: `tokens` is None when
    the server reported none, and `arrivals` then holds times with a count of 0.
    """

    index: int
    prompt: str  # its id in the workload
    start: float  # request handed to the socket; for Poisson load, when it was due
    outcome: Outcome
    arrivals: tuple[tuple[float, int], ...] = ()
    end: float = 0.0
    lag: float = 0.0  # how much later than due it was sent
    warmup: bool = False
    tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    verify_steps: int | None = None
    visible: float | None = None  # first text that is not reasoning, when that is known
    finish: str = ""
    status: int = 0
    detail: str = ""  # of a failure, in the server's words
    text: str = ""

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token of any kind, reasoning included."""
        return self.arrivals[0][0] - self.start if self.arrivals else None

    @property
    def e2e(self) -> float | None:
        """Seconds to the last token."""
        return self.arrivals[-1][0] - self.start if self.arrivals else None

    @property
    def decode(self) -> float:
        """Seconds from the first arrival of tokens to the last."""
        return self.arrivals[-1][0] - self.arrivals[0][0] if self.arrivals else 0.0

    @property
    def tpot(self) -> float | None:
        """Decode time / (tokens − 1), as the other clients define it; seconds."""
        return self.decode / (self.tokens - 1) if self.tokens and self.tokens > 1 else None

    @property
    def rate(self) -> float | None:
        """Tokens a second that this user saw while decoding: tokens after the first arrival / time."""
        if not self.tokens or not self.decode or not self.arrivals[0][1]:
            return None
        return (self.tokens - self.arrivals[0][1]) / self.decode

    @property
    def accept_length(self) -> float | None:
        """completion_tokens / spec_verify_ct, bonus token included; None without speculation."""
        return self.tokens / self.verify_steps if self.tokens and self.verify_steps else None

    @property
    def step(self) -> float | None:
        """Decode time / verify steps, in seconds; None when the server counts no steps."""
        return self.decode / self.verify_steps if self.verify_steps and self.decode else None
