"""The journalctl and systemd-analyze options that the tool uses."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from ddtree_ops.lab.embedded.answer import Answer, Options
from ddtree_ops.lab.embedded.journal import Fields, as_json, as_short
from ddtree_ops.lab.embedded.manager import Manager
from ddtree_ops.lab.embedded.systemctl import VERSION
from ddtree_ops.lab.embedded.unitfile import read_unit, split_words

_VALUED = (
    *("-u", "--unit", "-o", "--output", "-n", "--lines", "--after-cursor", "-S", "--since", "-b"),
    *("--output-fields", "-t", "--identifier"),
)


async def journalctl(manager: Manager, argv: list[str], answer: Answer) -> int:
    """Prints entries, oldest first; with -f goes on until the caller leaves."""
    options = Options.parse(_attach_boot(argv), _VALUED)
    if options.has("--version"):
        answer.out(VERSION)
        return 0
    keep = _filter(manager, options)
    entries = manager.journal.after(options.last("--after-cursor"), keep)
    lines = options.last("-n", "--lines")
    if lines and lines != "all" and not (lines.startswith("+")):
        entries = entries[-int(lines) :] if int(lines) else []
    elif options.has("-f", "--follow") and not lines:
        entries = entries[-10:]
    if options.has("-r", "--reverse"):
        entries.reverse()
    for entry in entries:
        answer.out(_shown(entry, options))
    _ending(entries, options, answer)
    if options.has("-f", "--follow"):
        await _follow(manager, entries, keep, options, answer)
    return 0


async def systemd_analyze(_: Manager, argv: list[str], answer: Answer) -> int:
    """`verify FILE…`: complaints on stderr; 1 when a unit could not be loaded or its command is missing."""
    options = Options.parse(argv, ())
    if options.has("--version"):
        answer.out(VERSION)
        return 0
    if options.words[:1] != ["verify"]:
        answer.err(f"Unknown command verb {' '.join(options.words[:1])}.")
        return 1
    return max([_verify(Path(name), answer) for name in options.words[1:]], default=0)


def _verify(path: Path, answer: Answer) -> int:
    unit = read_unit(path.name, path.parent)
    if unit.path is None:
        answer.err(f"Unit {path.name} not found.")
        return 1
    for complaint in unit.complaints:
        answer.err(complaint.text)
    if unit.fatal:
        answer.err(f"Unit {path.name} has a bad unit file setting.")
        return 1
    code = 0
    for key in ("ExecStartPre", "ExecStart", "ExecStop"):
        for value in unit.all("Service", key):
            program = (split_words(value.lstrip("-@:+!")) or [""])[0]
            if program.startswith("/") and not os.access(program, os.X_OK):
                answer.err(f"{path.name}: Command {program} is not executable: No such file or directory")
                code = 1
    return code


def _filter(manager: Manager, options: Options) -> Callable[[Fields], bool]:
    units = [_full(name) for name in options.all("-u", "--unit")]
    matches = [word.partition("=") for word in options.words]
    since = options.last("-S", "--since")
    earliest = float(since.removeprefix("@")) * 1e6 if since and since.startswith("@") else 0.0
    boot = manager.world.boot_id if options.has("-b") else ""

    def keep(entry: Fields) -> bool:
        if units and entry.get("_SYSTEMD_UNIT") not in units and entry.get("UNIT") not in units:
            return False
        if boot and entry["_BOOT_ID"] != boot:
            return False
        if any(entry.get(name) != value for name, _, value in matches):
            return False
        return int(entry["__REALTIME_TIMESTAMP"]) >= earliest

    return keep


def _shown(entry: Fields, options: Options) -> str:
    form = options.last("-o", "--output") or "short"
    if form == "cat":
        return entry["MESSAGE"]
    if form == "json":
        chosen = options.last("--output-fields")
        names = chosen.split(",") if chosen else list(entry)
        kept = {
            name: text
            for name, text in entry.items()
            if name in names or name.startswith("__") or name == "_BOOT_ID"
        }
        return as_json(kept, everything=options.has("-a", "--all"))
    return as_short(entry, os.uname().nodename)


def _ending(entries: list[Fields], options: Options, answer: Answer) -> None:
    form = options.last("-o", "--output") or "short"
    if not entries and form == "short" and not options.has("-q", "--quiet"):
        answer.out("-- No entries --")
    if options.has("--show-cursor") and entries:
        answer.out(f"-- cursor: {entries[-1]['__CURSOR']}")


async def _follow(
    manager: Manager, seen: list[Fields], keep: Callable[[Fields], bool], options: Options, answer: Answer
) -> None:
    last = manager.journal.entries[-1]["__CURSOR"] if manager.journal.entries else None
    last = seen[-1]["__CURSOR"] if seen else last
    fresh = asyncio.Event()
    manager.journal.listeners.add(fresh.set)
    try:
        while True:
            await fresh.wait()
            fresh.clear()
            for entry in manager.journal.after(last, keep):
                answer.out(_shown(entry, options))
                last = entry["__CURSOR"]
    finally:
        manager.journal.listeners.discard(fresh.set)


def _attach_boot(argv: list[str]) -> list[str]:
    """-b takes its value only when one is there: `-b 0`, `-b` and `-b0` all mean this boot here."""
    out: list[str] = []
    for word in argv:
        if out and out[-1] == "-b" and word.lstrip("-").isdigit():
            continue
        out.append(word)
    return ["-b0" if word == "-b" else word for word in out]


def _full(name: str) -> str:
    return name if name.endswith((".service", ".timer")) else f"{name}.service"
