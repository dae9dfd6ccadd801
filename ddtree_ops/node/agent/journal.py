"""journal.jsonl: what happened to a service, append-only and on disk before anyone hears of it."""

from __future__ import annotations

import json
import os

from .base import Json, Place
from .clock import utc_now
from .files import sync_folder

CONCLUSIONS = ("confirmed", "reverted", "unproven")


def append_entries(place: Place, entries: list[Json]) -> None:
    """Appends all of the entries or, when the disk is full, none."""
    stamped = [{**entry, "at": entry.get("at") or utc_now()} for entry in entries]
    data = "".join(json.dumps(entry, sort_keys=True) + "\n" for entry in stamped).encode()
    fresh = not os.path.exists(place.journal)
    handle = os.open(place.journal, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            data = b"\n" + data  # a line torn by a power cut stays alone on its line
        try:
            _write_all(handle, data)
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, size)
            raise
    finally:
        os.close(handle)
    if fresh:
        sync_folder(place.dir)


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def read_entries(place: Place) -> list[Json]:
    """All whole lines, oldest first."""
    try:
        with open(place.journal, "rb") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    entries = []
    for line in lines:
        try:
            entry = json.loads(line.decode())
        except ValueError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries


def entry_of(run: str, by: str, event: str, release: str | None, detail: Json | None = None) -> Json:
    return {"run": run, "by": by, "event": event, "release": release, "detail": detail or {}}


def append_once(place: Place, entry: Json) -> None:
    """Appends unless the run, since it last armed the guard, has this event for this release."""
    same = ("event", "release")
    if not any(all(old.get(key) == entry[key] for key in same) for old in _since_armed(place, entry["run"])):
        append_entries(place, [entry])


def conclusion_of(place: Place, run: str) -> Json | None:
    """The entry that ended a run's arming: confirmed, reverted or unproven; None while it goes on."""
    ended = [old for old in _since_armed(place, run) if old.get("event") in CONCLUSIONS]
    return ended[-1] if ended else None


def _since_armed(place: Place, run: str) -> list[Json]:
    entries = [entry for entry in read_entries(place) if entry.get("run") == run]
    armed = [i for i, entry in enumerate(entries) if entry.get("event") == "armed"]
    return entries[armed[-1] :] if armed else entries
