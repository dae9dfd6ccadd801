"""The world as the rooms see it: tiny interfaces, passed in."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def utc(self) -> str:
        """Now, ISO 8601 with seconds, UTC."""
        ...

    def sleep(self, seconds: float) -> None: ...


class Shell(Protocol):
    """Runs one command on a node. Quoting happens behind this line, nowhere else."""

    def run(self, argv: tuple[str, ...], *, stdin: bytes = b"", timeout_s: float) -> Done:
        """Runs argv to its end; raises Unreachable when the link fails or time runs out."""
        ...


class Done(Protocol):
    @property
    def code(self) -> int: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...
