"""systemctl and journalctl, found on PATH by their bare names."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from .base import Json, Problem
from .words import hide, secret_words, unit_words

COMMAND_S = 60.0
UNIT_PROPERTIES = (
    "Id,LoadState,FragmentPath,UnitFileState,ActiveState,SubState,Result,MainPID,NRestarts,InvocationID,"
    "ExecStart,EnvironmentFiles,DropInPaths,Job"
)
ALIVE = ("active", "activating", "reloading", "deactivating")


def run_command(*argv: str, timeout: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
    """Runs a command of the system to its end; its exit code is the caller's matter."""
    environment = {**os.environ, "LC_ALL": "C", "SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0"}
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            env=environment,
            check=False,
        )
    except FileNotFoundError as error:
        raise Problem(argv[0], "not found on this node", "the node must run systemd", "refused") from error
    except subprocess.TimeoutExpired as error:
        raise Problem(
            " ".join(argv[:3]), f"did not end within {timeout:.0f} s", "look at the node's load"
        ) from error


def systemctl(*argv: str) -> str:
    """Runs systemctl; its complaint becomes a Problem."""
    done = run_command("systemctl", *argv)
    if done.returncode != 0:
        raise Problem(
            "systemctl " + " ".join(argv),
            f"got exit {done.returncode}, expected 0: {done.stderr.strip() or 'no word why'}",
        )
    return done.stdout


def reload_units() -> None:
    systemctl("daemon-reload")


def show_units(*patterns: str) -> list[Json]:
    """`systemctl show` as dictionaries, one a unit, each unit once."""
    return parse_shown(systemctl("show", "--property=" + UNIT_PROPERTIES, *patterns))


def parse_shown(text: str) -> list[Json]:
    units: dict[str, Json] = {}
    for block in text.split("\n\n"):
        values: Json = {}
        for name, _, value in (line.partition("=") for line in block.splitlines() if "=" in line):
            several = name == "EnvironmentFiles" and name in values
            values[name] = f"{values[name]}\n{value}" if several else value
        if values.get("Id"):
            units.setdefault(values["Id"], values)
    return list(units.values())


def show_unit(name: str) -> Json:
    shown = show_units(name)
    return shown[0] if shown else {"Id": name}


def alive_invocation(unit: Json) -> str:
    """The invocation that runs now; "" while nothing runs."""
    return str(unit.get("InvocationID", "")) if unit.get("ActiveState") in ALIVE else ""


def has_ended(unit: Json) -> bool:
    """Whether nothing runs and no job is queued; in the midst of a restart a unit rests too, often failed."""
    return unit.get("ActiveState") not in ALIVE and not unit.get("Job")


def unit_lines(unit: Json, *selection: str) -> tuple[list[Json], str]:
    """A unit's journal without its secrets: ({time, message, invocation}, cursor of the last line or "")."""
    name = unit["Id"]
    done = run_command("journalctl", "--no-pager", "--quiet", "--output=json", "--unit=" + name, *selection)
    if done.returncode != 0:
        raise Problem(f"journal of {name}", f"got exit {done.returncode}: {done.stderr.strip()}")
    lines, cursor = parse_journal(done.stdout)
    secrets = secret_words(unit_words(unit)).values()
    return [{**line, "message": hide(line["message"], secrets)} for line in lines], cursor


def parse_journal(text: str) -> tuple[list[Json], str]:
    lines, cursor = [], ""
    for row in text.splitlines():
        try:
            record = json.loads(row)
        except ValueError:
            continue
        cursor = str(record.get("__CURSOR", cursor))
        lines.append(
            {
                "time": int(record.get("__REALTIME_TIMESTAMP", 0)) / 1e6,
                "message": journal_message(record.get("MESSAGE")),
                "invocation": record.get("_SYSTEMD_INVOCATION_ID") or "",
            }
        )
    return lines, cursor


def journal_message(value: Any) -> str:
    """MESSAGE as text: journald gives bytes that are no UTF-8 as a list, and null where too long."""
    if isinstance(value, list):
        return bytes(byte for byte in value if isinstance(byte, int)).decode("utf-8", "replace")
    return "" if value is None else str(value)
