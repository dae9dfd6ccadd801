"""What `systemctl show` says of a unit, property by property."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from ddtree_ops.lab.embedded.manager import AnyUnit, Manager
from ddtree_ops.lab.embedded.service import Service
from ddtree_ops.lab.embedded.timer import Timer
from ddtree_ops.lab.embedded.unitfile import INFINITY, spell_span, split_words

_WORD_LISTS = ("After", "Before", "Wants", "Requires", "Conflicts")


def properties(manager: Manager, unit: AnyUnit) -> dict[str, str]:
    """Every property that the stand-in has, in a fixed order."""
    file, loaded = unit.file, unit.file.path is not None
    out = _service(unit) if isinstance(unit, Service) else _timer(unit)
    out |= {"Id": unit.name, "Names": unit.name}
    out |= {key: " ".join(file.words("Unit", key)) for key in _WORD_LISTS}
    out |= {
        "Description": file.get("Unit", "Description") or unit.name,
        "LoadState": "bad-setting" if file.fatal else "loaded" if loaded else "not-found",
        "ActiveState": unit.active,
        "SubState": unit.sub,
        "FragmentPath": str(file.path or ""),
        "DropInPaths": " ".join(map(str, file.drop_ins)),
        "UnitFileState": file_state(manager, unit.name),
        "NeedDaemonReload": "yes" if _stale(unit) else "no",
        "InvocationID": unit.invocation,
        "Job": "1" if unit.name in manager.jobs else "",
    }
    out |= _stamp("StateChangeTimestamp", unit.changed_at)
    out |= _stamp("InactiveExitTimestamp", unit.inactive_exit)
    out |= _stamp("ActiveEnterTimestamp", unit.active_enter)
    out |= _stamp("InactiveEnterTimestamp", unit.inactive_enter)
    return out


def file_state(manager: Manager, name: str) -> str:
    """enabled, disabled or static, as `systemctl is-enabled` prints; "" without a file."""
    if not (manager.unit_dir / name).exists():
        return ""
    if name in manager.enabled():
        return "enabled"
    file = manager.unit(name).file
    return "disabled" if file.words("Install", "WantedBy") else "static"


def _service(unit: Service) -> dict[str, str]:
    get = unit.file.get
    oneshot = get("Service", "Type") == "oneshot"
    return {
        "Type": get("Service", "Type", "simple"),
        "Restart": get("Service", "Restart", "no"),
        "RestartUSec": spell_span(unit.file.span("Service", "RestartSec", 0.1)),
        "TimeoutStartUSec": spell_span(
            unit.file.span("Service", "TimeoutStartSec", INFINITY if oneshot else 90)
        ),
        "TimeoutStopUSec": spell_span(unit.file.span("Service", "TimeoutStopSec", 90)),
        "MainPID": str(unit.main_pid),
        "ControlPID": "0",
        "Result": unit.result,
        "NRestarts": str(unit.restarts),
        "ExecMainStartTimestamp": _spelt(unit.main_started),
        "ExecMainPID": str(unit.main_pid),
        "ExecMainCode": str(unit.main_code),
        "ExecMainStatus": str(unit.main_status),
        "ExecStart": _exec_start(unit),
        "ControlGroup": f"/system.slice/{unit.name}" if unit.active in ("active", "activating") else "",
        "Environment": " ".join(unit.file.all("Service", "Environment")).replace('"', ""),
        "EnvironmentFiles": "\n".join(_environment_files(unit)),
        "LimitNOFILE": get("Service", "LimitNOFILE", "524288"),
        "WorkingDirectory": get("Service", "WorkingDirectory"),
        "User": get("Service", "User"),
        "KillMode": get("Service", "KillMode", "control-group"),
        "RemainAfterExit": get("Service", "RemainAfterExit", "no"),
    }


def _timer(unit: Timer) -> dict[str, str]:
    waiting = unit.active == "active" and unit.next_elapse != INFINITY
    return {
        "Unit": unit.unit,
        "NextElapseUSecMonotonic": spell_span(unit.next_elapse) if waiting else "infinity",
        "LastTriggerUSec": _spelt(_wall(unit.last_trigger)),
        "Result": unit.result,
        "Triggers": unit.unit,
    }


def _exec_start(unit: Service) -> str:
    words = split_words(unit.file.get("Service", "ExecStart").lstrip("-@:+!")) or []
    if not words:
        return ""
    ignore = "yes" if unit.file.get("Service", "ExecStart").startswith("-") else "no"
    times = f"start_time=[{_spelt(unit.main_started) or 'n/a'}] ; stop_time=[n/a] ; pid={unit.main_pid}"
    state = f"code=(null) ; status={unit.main_status}/0"
    return f"{{ path={words[0]} ; argv[]={' '.join(words)} ; ignore_errors={ignore} ; {times} ; {state} }}"


def _environment_files(unit: Service) -> list[str]:
    values = unit.file.all("Service", "EnvironmentFile")
    return [
        f"{value.lstrip('-')} (ignore_errors={'yes' if value.startswith('-') else 'no'})" for value in values
    ]


def _stale(unit: AnyUnit) -> bool:
    path = unit.file.path
    if path is None:
        return False
    drop_ins = tuple(sorted(Path(f"{path}.d").glob("*.conf")))
    return not path.exists() or path.stat().st_mtime != unit.file.mtime or drop_ins != unit.file.drop_ins


def _stamp(name: str, moment: float) -> dict[str, str]:
    return {name: _spelt(_wall(moment)), f"{name}Monotonic": str(round(moment * 1e6))}


def _wall(moment: float) -> float:
    return time.time() - (time.monotonic() - moment) if moment else 0.0


def _spelt(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%a %Y-%m-%d %H:%M:%S} UTC" if at else ""
