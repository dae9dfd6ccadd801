"""The stand-in's journal: JSON lines on disk with journald's field names and cursors that last."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

Fields = dict[str, str]
_KEPT = 20_000  # entries in memory and, after a restart of the node's server, on disk
_LONGEST = 48 * 1024  # journald cuts a line of output here (LineMax=)
_SHOWN = 4096  # without --all, `-o json` gives null for longer fields


class Journal:
    """Append-only entries, oldest first; numbered from 1 so that a cursor finds its place again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.entries: list[Fields] = []
        if path.exists():
            whole, _, torn = path.read_text().rpartition("\n")
            self.entries = [json.loads(line) for line in whole.splitlines()[-_KEPT:]]
            if torn:  # by a kill in the middle of a write
                path.write_text(whole + "\n" if whole else "")
        self._source = self._cursor_source() or uuid.uuid4().hex
        self._file = path.open("a", buffering=1)
        self.listeners: set[Callable[[], None]] = set()

    def append(self, fields: Fields) -> None:
        """Adds an entry, stamped and numbered here."""
        number = _number(self.entries[-1]) + 1 if self.entries else 1
        now, mono = time.time_ns() // 1000, time.monotonic_ns() // 1000
        stamps = {
            "__CURSOR": f"s={self._source};i={number:x};m={mono:x};t={now:x}",
            "__REALTIME_TIMESTAMP": str(now),
            "__MONOTONIC_TIMESTAMP": str(mono),
        }
        entry = stamps | fields
        self.entries.append(entry)
        if len(self.entries) > 2 * _KEPT:
            del self.entries[:_KEPT]
        self._file.write(json.dumps(entry) + "\n")
        for listener in tuple(self.listeners):
            listener()

    def after(self, cursor: str | None, keep: Callable[[Fields], bool]) -> list[Fields]:
        """Entries behind the cursor (all, without one) that `keep` wants."""
        start = _number({"__CURSOR": cursor}) if cursor else 0
        return [entry for entry in self.entries if _number(entry) > start and keep(entry)]

    def close(self) -> None:
        self._file.close()

    def _cursor_source(self) -> str:
        return self.entries[-1]["__CURSOR"].partition(";")[0][2:] if self.entries else ""


def split_output(held: bytes, data: bytes) -> tuple[list[bytes], bytes]:
    """Whole lines of a unit's output, and the piece that waits for its end; cut where journald cuts."""
    *lines, rest = (held + data).split(b"\n")
    while len(rest) > _LONGEST:
        lines.append(rest[:_LONGEST])
        rest = rest[_LONGEST:]
    return [line for line in lines if line.strip()], rest


def as_json(entry: Fields, *, everything: bool = False) -> str:
    """One line of `journalctl -o json`: unprintable texts are lists of bytes, over-long ones null."""
    return json.dumps({name: _json_value(text, everything) for name, text in entry.items()})


def as_short(entry: Fields, hostname: str) -> str:
    """One line in journalctl's usual form."""
    at = datetime.fromtimestamp(int(entry["__REALTIME_TIMESTAMP"]) / 1e6, UTC).astimezone()
    name, pid = entry.get("SYSLOG_IDENTIFIER", "unknown"), entry.get("_PID", "1")
    return f"{at:%b %d %H:%M:%S} {hostname} {name}[{pid}]: {entry['MESSAGE']}"


def _json_value(text: str, everything: bool) -> str | list[int] | None:
    if not everything and len(text.encode(errors="surrogateescape")) >= _SHOWN:
        return None
    if all(char.isprintable() or char in "\t\n" for char in text):
        return text
    return list(text.encode(errors="surrogateescape"))


def _number(entry: Fields) -> int:
    for part in entry["__CURSOR"].split(";"):
        if part.startswith("i="):
            return int(part[2:], 16)
    return 0
