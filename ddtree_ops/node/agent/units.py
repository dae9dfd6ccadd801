"""Units as facts: one service, and every service that runs an engine."""

from __future__ import annotations

from .base import Json
from .files import read_text
from .systemd import alive_invocation, has_ended, show_unit, show_units
from .words import unit_words, without_secrets

GUARD_PREFIX = "ddtree-ops-guard-"


def unit_facts(name: str, shown: Json | None = None, text: bool = False) -> Json:
    """The fields of model.facts.Unit."""
    unit = show_unit(name) if shown is None else shown
    path = unit.get("FragmentPath") or None
    return {
        "name": name,
        "path": path,
        "text": (read_text(path) or None) if text and path else None,
        "enabled": unit.get("UnitFileState") in ("enabled", "enabled-runtime", "linked"),
        "active": unit.get("ActiveState") or "inactive",
        "ended": has_ended(unit),
        "sub": unit.get("SubState") or "dead",
        "result": unit.get("Result") or "success",
        "main_pid": _number(unit.get("MainPID")),
        "restarts": _number(unit.get("NRestarts")),
        "invocation": alive_invocation(unit),
        "exec_start": without_secrets(unit_words(unit)),
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
        if not name.startswith(GUARD_PREFIX) and runs_engine(unit_words(unit), launcher):
            engines.append(unit_facts(name, unit, text=True))
    return asked, engines, owners


def runs_engine(argv: list[str], launcher: str) -> bool:
    """Whether a command line starts SGLang, or the module that the profile launches."""
    return any(
        word in (launcher, "sglang") or word.startswith("sglang.") or word.endswith("/sglang")
        for word in argv
    )


def _number(text: object) -> int:
    return int(text) if isinstance(text, str) and text.isdigit() else 0
