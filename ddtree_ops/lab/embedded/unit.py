"""What services and timers share: state, time stamps, and the journal lines about a unit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ddtree_ops.lab.embedded.journal import Journal
from ddtree_ops.lab.embedded.unitfile import UnitFile


@dataclass(slots=True, kw_only=True)
class World:
    """The node around its units."""

    journal: Journal
    environment: dict[str, str]
    boot_id: str
    booted: float  # time.monotonic() at the start of this boot
    changed: Callable[[], None]  # called after each change of state


class Unit:
    """A loaded unit and its state."""

    def __init__(self, file: UnitFile, world: World) -> None:
        self.file, self.world = file, world
        self.active, self.sub, self.result = "inactive", "dead", "success"
        self.invocation = ""
        self.inactive_exit = self.inactive_enter = self.active_enter = self.changed_at = 0.0

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def title(self) -> str:
        description = self.file.get("Unit", "Description")
        return f"{self.name} - {description}" if description else self.name

    def enter(self, active: str, sub: str) -> None:
        """Moves to a state and keeps the times that properties and timers need."""
        now = time.monotonic()
        resting = ("inactive", "failed")
        if self.active in resting and active not in resting:
            self.inactive_exit = now
        if self.active not in resting and active in resting:
            self.inactive_enter = now
        if active == "active" and self.active != "active":
            self.active_enter = now
        self.active, self.sub, self.changed_at = active, sub, now
        self.world.changed()

    def reset_failed(self) -> None:
        """Forgets a failure."""
        self.result = "success"
        if self.active == "failed":
            self.enter("inactive", "dead")

    def say(self, text: str) -> None:
        """A line by the service manager about this unit."""
        fields = {
            "MESSAGE": text,
            "SYSLOG_IDENTIFIER": "systemd",
            "_PID": "1",
            "_COMM": "systemd",
            "PRIORITY": "6",
        }
        self._write(fields | {"UNIT": self.name, "INVOCATION_ID": self.invocation})

    def log(self, pid: int, line: bytes) -> None:
        """A line that one of the unit's processes printed."""
        text = line.decode("utf-8", errors="surrogateescape")
        words = self.file.get("Service", "ExecStart").lstrip("-@:+!").split()
        name = self.file.get("Service", "SyslogIdentifier") or Path(words[0] if words else self.name).name
        fields = {"MESSAGE": text, "SYSLOG_IDENTIFIER": name, "_PID": str(pid), "PRIORITY": "6"}
        self._write(fields | {"_SYSTEMD_UNIT": self.name, "_SYSTEMD_INVOCATION_ID": self.invocation})

    def _write(self, fields: dict[str, str]) -> None:
        self.world.journal.append(fields | {"_BOOT_ID": self.world.boot_id})
