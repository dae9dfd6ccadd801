"""What a run shows while it goes on; the command line draws it, tests record it."""

from __future__ import annotations

from typing import Protocol

from ddtree_ops.model.plan import Plan
from ddtree_ops.model.release import Gate


class Screen(Protocol):
    def plan(self, plan: Plan) -> None:
        """The whole plan, before anything is touched."""
        ...

    def ask(self, plan: Plan) -> bool:
        """Whether to go on; True without asking when the operator said so beforehand."""
        ...

    def step(self, node: str, name: str, summary: str) -> None:
        """A step begins."""
        ...

    def progress(self, node: str, text: str) -> None:
        """One line about the step that goes on; a live view replaces the one before."""
        ...

    def gate(self, node: str, gate: Gate) -> None: ...

    def note(self, node: str, text: str) -> None: ...

    def warn(self, node: str, text: str) -> None: ...

    def failed(self, node: str, text: str) -> None:
        """The step that goes on ends here, and why."""
        ...

    def close(self) -> None:
        """The run is over; nothing more is shown."""
        ...
