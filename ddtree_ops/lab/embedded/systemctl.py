"""The systemctl verbs that the tool uses, with systemctl's own words and exit statuses."""

from __future__ import annotations

import asyncio
import fnmatch
import json
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from ddtree_ops.lab.embedded.answer import Answer, Options
from ddtree_ops.lab.embedded.manager import Manager, NoSuchUnit
from ddtree_ops.lab.embedded.properties import file_state, properties
from ddtree_ops.lab.embedded.service import Service

VERSION = "systemd stand-in 1 (ddtree-ops embedded lab)"
_VALUED = ("-p", "--property", "-t", "--type", "-s", "--signal", "-n", "--lines", "-o", "--output", "--state")


@dataclass(frozen=True, slots=True)
class Call:
    """One command line of systemctl, units by their full names."""

    manager: Manager
    names: list[str]
    options: Options
    answer: Answer


async def systemctl(manager: Manager, argv: list[str], answer: Answer) -> int:
    """Runs one command line; returns its exit status."""
    options = Options.parse(argv, _VALUED)
    if options.has("--version"):
        answer.out(VERSION)
        return 0
    verb, *names = options.words or ["list-units"]
    if verb not in _VERBS:
        answer.err(f"Unknown command verb {verb}.")
        return 1
    try:
        return await _VERBS[verb](Call(manager, [_full(name) for name in names], options, answer))
    except NoSuchUnit as error:
        answer.err(_complaint(verb, names, error))
        return error.code


async def _show(call: Call) -> int:
    wanted = [name for value in call.options.all("-p", "--property") for name in value.split(",")]
    if not call.names:
        call.answer.out(f"Version={VERSION.split(' ', 1)[1]}")
    for index, name in enumerate(_matching(call.manager, call.names)):
        if index:
            call.answer.out("")
        for key, value in properties(call.manager, call.manager.unit(name)).items():
            if not wanted or key in wanted:
                call.answer.out(value if call.options.has("--value") else f"{key}={value}")
    return 0


async def _job(call: Call, kind: str, names: list[str] | None = None) -> int:
    jobs = {name: call.manager.submit(name, kind) for name in (call.names if names is None else names)}
    if call.options.has("--no-block"):
        return 0
    code = 0
    for name, job in jobs.items():
        assert job.task
        await asyncio.wait([job.task])
        if job.task.cancelled():
            call.answer.err(f"Job for {name} canceled.")
            code = 1
        elif not job.task.result():
            call.answer.err(f"{_why(call.manager, name)}\n{_advice(name)}")
            code = 1
    return code


async def _start(call: Call) -> int:
    return await _job(call, "start")


async def _stop(call: Call) -> int:
    return await _job(call, "stop")


async def _restart(call: Call) -> int:
    return await _job(call, "restart")


async def _try_restart(call: Call) -> int:
    running = [name for name in call.names if call.manager.unit(name).active == "active"]
    return await _job(call, "restart", running)


async def _kill(call: Call) -> int:
    wish = (call.options.all("-s", "--signal") or ["SIGTERM"])[-1]
    number = int(wish) if wish.isdigit() else signal.Signals["SIG" + wish.removeprefix("SIG")]
    for name in call.names:
        unit = call.manager.unit(name)
        if isinstance(unit, Service):
            unit.kill(number)
    return 0


async def _reload(call: Call) -> int:
    await call.manager.daemon_reload()
    return 0


async def _reset_failed(call: Call) -> int:
    for name in call.names or list(call.manager.units):
        if call.manager.unit(name).file.path is None and call.manager.unit(name).active == "inactive":
            raise NoSuchUnit(f"Unit {name} not loaded.", 1)
        call.manager.unit(name).reset_failed()
    return 0


async def _enable(call: Call) -> int:
    for name in call.names:
        path = call.manager.unit_dir / name
        if not path.exists():
            call.answer.err(f"Failed to enable unit: Unit file {name} does not exist.")
            return 1
        for target in call.manager.unit(name).file.words("Install", "WantedBy"):
            link = call.manager.unit_dir / f"{target}.wants" / name
            link.parent.mkdir(exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(path)
                call.answer.err(f"Created symlink {link} → {path}.")
    await call.manager.daemon_reload()
    return await _job(call, "start") if call.options.has("--now") else 0


async def _disable(call: Call) -> int:
    for name in call.names:
        links = list(call.manager.unit_dir.glob(f"*.target.wants/{name}"))
        if not links and not (call.manager.unit_dir / name).exists():
            call.answer.err(f"Failed to disable unit: Unit file {name} does not exist.")
            return 1
        for link in links:
            link.unlink()
            call.answer.err(f'Removed "{link}".')
    await call.manager.daemon_reload()
    return await _job(call, "stop") if call.options.has("--now") else 0


async def _is_active(call: Call) -> int:
    states = [call.manager.unit(name).active for name in call.names]
    call.answer.out("\n".join(states))
    return 0 if "active" in states else 3


async def _is_failed(call: Call) -> int:
    states = [call.manager.unit(name).active for name in call.names]
    call.answer.out("\n".join(states))
    return 0 if "failed" in states else 1


async def _is_enabled(call: Call) -> int:
    code = 1
    for name in call.names:
        state = file_state(call.manager, name)
        if not state:
            call.answer.err(f"Failed to get unit file state for {name}: No such file or directory")
            return 1
        call.answer.out(state)
        code = 0 if state in ("enabled", "static") else code
    return code


async def _is_system_running(call: Call) -> int:
    while call.options.has("--wait") and call.manager.booting:
        await asyncio.sleep(0.02)
    failed = any(unit.active == "failed" for unit in call.manager.units.values())
    state = "starting" if call.manager.booting else "degraded" if failed else "running"
    call.answer.out(state)
    return 0 if state == "running" else 1


async def _cat(call: Call) -> int:
    for name in call.names:
        file = call.manager.unit(name).file
        if file.path is None:
            call.answer.err(f"No files found for {name}.")
            return 1
        parts = [
            f"# {path}\n{Path(path).read_text().rstrip(chr(10))}" for path in (file.path, *file.drop_ins)
        ]
        call.answer.out("\n\n".join(parts))
    return 0


async def _list_units(call: Call) -> int:
    kinds = [kind for value in call.options.all("-t", "--type") for kind in value.split(",")]
    rows = []
    for name in call.manager.known():
        unit = call.manager.unit(name)
        shown = call.options.has("-a", "--all") or unit.active != "inactive"
        if (
            shown
            and (not kinds or name.rpartition(".")[2] in kinds)
            and (not call.names or name in call.names)
        ):
            load = properties(call.manager, unit)["LoadState"]
            description = unit.file.get("Unit", "Description") or name
            rows.append(
                {
                    "unit": name,
                    "load": load,
                    "active": unit.active,
                    "sub": unit.sub,
                    "description": description,
                }
            )
    if "json" in call.options.all("-o", "--output"):
        call.answer.out(json.dumps(rows))
    else:
        for row in rows:
            call.answer.out(" ".join(row.values()))
    return 0


async def _list_unit_files(call: Call) -> int:
    kinds = [kind for value in call.options.all("-t", "--type") for kind in value.split(",")]
    for path in sorted(call.manager.unit_dir.iterdir()):
        if (
            path.is_file()
            and (not kinds or path.suffix[1:] in kinds)
            and (not call.names or path.name in call.names)
        ):
            call.answer.out(f"{path.name} {file_state(call.manager, path.name)} enabled")
    return 0


async def _status(call: Call) -> int:
    code = 0
    for name in call.names:
        unit = call.manager.unit(name)
        if unit.file.path is None:
            call.answer.err(f"Unit {name} could not be found.")
            return 4
        call.answer.out(
            f"{unit.title}\n     Loaded: loaded ({unit.file.path})\n     Active: {unit.active} ({unit.sub})"
        )
        code = code if unit.active == "active" else 3
    return code


async def _reboot(call: Call) -> int:
    call.answer.reboot = True
    return 0


_VERBS: dict[str, Callable[[Call], Awaitable[int]]] = {
    "show": _show,
    "start": _start,
    "stop": _stop,
    "restart": _restart,
    "try-restart": _try_restart,
    "kill": _kill,
    "daemon-reload": _reload,
    "reset-failed": _reset_failed,
    "enable": _enable,
    "disable": _disable,
    "is-active": _is_active,
    "is-failed": _is_failed,
    "is-enabled": _is_enabled,
    "is-system-running": _is_system_running,
    "cat": _cat,
    "list-units": _list_units,
    "list-unit-files": _list_unit_files,
    "status": _status,
    "reboot": _reboot,
}


def _matching(manager: Manager, names: list[str]) -> list[str]:
    """The names, with patterns replaced by the loaded units that they match."""
    found: list[str] = []
    for name in names:
        if set(name) & set("*?["):
            loaded = (
                unit.name for unit in manager.units.values() if unit.file.path or unit.active != "inactive"
            )
            found += sorted(fnmatch.filter(loaded, name))
        else:
            found.append(name)
    return found


def _full(name: str) -> str:
    return name if name.endswith((".service", ".timer", ".target", ".socket")) else f"{name}.service"


def _complaint(verb: str, names: list[str], error: NoSuchUnit) -> str:
    first = _full(names[0]) if names else ""
    done = "reset failed state of unit" if verb == "reset-failed" else verb
    advice = (
        f"\nSee system logs and 'systemctl status {first}' for details."
        if "bad unit file" in str(error)
        else ""
    )
    return f"Failed to {done} {first}: {error}{advice}"


def _why(manager: Manager, name: str) -> str:
    result = getattr(manager.unit(name), "result", "")
    reasons = {
        "timeout": "a timeout was exceeded",
        "signal": "a fatal signal was delivered to the control process",
        "start-limit-hit": "start of the service was attempted too often",
    }
    return (
        f"Job for {name} failed because {reasons.get(result, 'the control process exited with error code')}."
    )


def _advice(name: str) -> str:
    return f'See "systemctl status {name}" and "journalctl -xeu {name}" for details.'
