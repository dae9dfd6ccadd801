"""Units as facts: one service, and every service that runs an engine."""

from __future__ import annotations

import shlex

from .base import Json
from .systemd import alive_invocation, show_unit, show_units

GUARD_PREFIX = "ddtree-ops-guard-"


def unit_facts(name: str, shown: Json | None = None, text: bool = False) -> Json:
    """The fields of model.facts.Unit."""
    unit = show_unit(name) if shown is None else shown
    path = unit.get("FragmentPath") or None
    return {
        "name": name,
        "path": path,
        "text": _read_text(path) if text and path else None,
        "enabled": unit.get("UnitFileState") in ("enabled", "enabled-runtime", "linked"),
        "active": unit.get("ActiveState") or "inactive",
        "sub": unit.get("SubState") or "dead",
        "result": unit.get("Result") or "success",
        "main_pid": _number(unit.get("MainPID")),
        "restarts": _number(unit.get("NRestarts")),
        "invocation": alive_invocation(unit),
        "exec_start": _argv(unit),
        "drop_ins": (unit.get("DropInPaths") or "").split(),
    }


def probe_units(service_unit: str, launcher: str) -> tuple[Json, list[Json], dict[int, str]]:
    """(the service, all services that run an engine, main pid → unit of every service)."""
    shown = {unit["Id"]: unit for unit in show_units(service_unit, "*.service")}
    asked = unit_facts(service_unit, shown.get(service_unit, {}), text=True)
    engines = []
    owners: dict[int, str] = {}
    for name, unit in shown.items():
        pid = _number(unit.get("MainPID"))
        if pid:
            owners[pid] = name
        if not name.startswith(GUARD_PREFIX) and runs_engine(_argv(unit), launcher):
            engines.append(unit_facts(name, unit, text=True))
    return asked, engines, owners


def runs_engine(argv: list[str], launcher: str) -> bool:
    """Whether a command line starts SGLang, or the module that the profile launches."""
    return any(
        word in (launcher, "sglang") or word.startswith("sglang.") or word.endswith("/sglang")
        for word in argv
    )


def _argv(unit: Json) -> list[str]:
    """The running process's words; else those that systemd shows, joined as it joins them."""
    pid = _number(unit.get("MainPID"))
    if pid:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().decode("utf-8", "replace").split("\0")
            if words[:-1]:
                return words[:-1]
        except OSError:
            pass
    return argv_shown(unit.get("ExecStart") or "")


def argv_shown(exec_start: str) -> list[str]:
    """The words after `argv[]=` of `systemctl show`'s ExecStart."""
    _, found, rest = exec_start.partition("argv[]=")
    if not found:
        return []
    words = rest.split(" ; ")[0].strip()
    try:
        return shlex.split(words)
    except ValueError:
        return words.split()


def _read_text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def _number(text: object) -> int:
    return int(text) if isinstance(text, str) and text.isdigit() else 0
