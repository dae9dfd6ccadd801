"""The machine's clock, behind the port that the rest is written against."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from ddtree_ops.model.errors import Failed
from ddtree_ops.model.ports import Clock


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def utc(self) -> str:
        return datetime.now(UTC).isoformat(timespec="seconds")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Deadline:
    """A point on a clock by which something must have happened."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._start, self.seconds = clock, clock.monotonic(), seconds

    @property
    def elapsed(self) -> float:
        return self._clock.monotonic() - self._start

    @property
    def left(self) -> float:
        return max(0.0, self.seconds - self.elapsed)

    def check(self, what: str, seen: str, hint: str = "") -> None:
        """Raises Failed once the time is up; `seen` says how far it came."""
        if self.left <= 0:
            raise Failed(what, f"got {seen} after {self.seconds:.0f} s, expected it done by then", hint=hint)
