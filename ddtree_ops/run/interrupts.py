"""Ctrl-C and its kin: they end the work at once, and never the way back."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """The operator, or the system, asked the run to end; not an Exception, so no handler eats it."""


class Interrupts:
    """Turns signals into `Interrupted`, except while shielded."""

    def __init__(self, on_shielded: Callable[[], None]) -> None:
        self._on_shielded = on_shielded
        self._shielded = False

    @contextmanager
    def installed(self) -> Iterator[Interrupts]:
        """Handles the signals inside the block; the former handlers come back after it."""
        before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Inside the block a signal is answered with a word, not obeyed: the node is being put back."""
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._shielded:
            self._on_shielded()
            return
        raise Interrupted(signal.Signals(number).name)
