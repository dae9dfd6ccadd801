"""The systemctl verbs that the tool uses, with systemctl's own words and exit statuses."""

from __future__ import annotations

import asyncio
import fnmatch
import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from ddtree_ops.lab.embedded.answer import Answer, Options
from ddtree_ops.lab.embedded.manager import Manager, NoSuchUnit
from ddtree_ops.lab.embedded.properties import file_state, properties
from ddtree_ops.lab.embedded.service import Service

VERSION = "systemd stand-in 1 (ddtree-ops embedded lab)"
Verb = Callable[["Manager", list[str], Options, Answer], Awaitable[int]]
_VALUED = ("-p", "--property", "-t", "--type", "-s", "--signal", "-n", "--lines", "-o", "--output", "--state")


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
        return await _VERBS[verb](manager, [_full(name) for name in names], options, answer)
    except NoSuchUnit as error:
        answer.err(_complaint(verb, names, error))
        return error.code


async def _show(manager: Manager, names: list[str], options: Options, answer: Answer) -> int:
    wanted = [name for value in options.all("-p", "--property") for name in value.split(",")]
    if not names:
        answer.out(f"Version={VERSION.split(' ', 1)[1]}")
    for index, name in enumerate(_matching(manager, names)):
        if index:
            answer.out("")
        for key, value in properties(manager, manager.unit(name)).items():
            if not wanted or key in wanted:
                answer.out(value if options.has("--value") else f"{key}={value}")
    return 0


async def _job(manager: Manager, kind: str, names: list[str], options: Options, answer: Answer) -> int:
    jobs = {name: manager.submit(name, kind) for name in names}
    if options.has("--no-block"):
        return 0
    code = 0
    for name, job in jobs.items():
        assert job.task
        await asyncio.wait([job.task])
        if job.task.cancelled():
            answer.err(f"Job for {name} canceled.")
            code = 1
        elif not job.task.result():
            answer.err(f"{_why(manager, name)}\n{_advice(name)}")
            code = 1
    return code


async def _start(manager: Manager, names: list[str], options: Options, answer: Answer) -> int:
    return await _job(manager, "start", names, options, answer)


async def _stop(manager: Manager, names: list[str], options: Options, answer: Answer) -> int:
    return await _job(manager, "stop", names, options, answer)


async def _restart(manager: Manager, names: list[str], options: Options, answer: Answer) -> int:
    return await _job(manager, "restart", names, options, answer)


async def _try_restart(manager: Manager, names: list[str], options: Options, answer: Answer) -> int:
    running = [name for name in names if manager.unit(name).active == "active"]
    return await _job(manager, "restart", running, options, answer)


async def _kill(manager: Manager, names: list[str], options: Options, answer: Answer) -> int:
    wish = (options.all("-s", "--signal") or ["SIGTERM"])[-1]
    number = int(wish) if wish.isdigit() else signal.Signals["SIG" + wish.removeprefix("SIG")]
    for name in names:
        unit = manager.unit(name)
        if isinstance(unit, Service):
            unit.kill(number)
    return 0


async def _reload(manager: Manager, names: list[str], options: Options, answer: Answer) -> int:
    await manager.daemon_reload()
    return 0


async def _reset_failed(manager: Manager, names: list[str], options: Options, answer: Answer) -> int:
    for name in names or list(manager.units):
        if manager.unit(name).file.path is None and manager.unit(name).active == "inactive":
            raise NoSuchUnit(f"Unit {name} not loaded.", 1)
        manager.unit(name).reset_failed()
    return 0


async def _enable(manager: Manager, names: list[str], options: Options, answer: Answer) -> int:
    for name in names:
        path = manager.unit_dir / name
        if not path.exists():
            answer.err(f"Failed to enable unit: Unit file {name} does not exist.")
            return 1
        for target in manager.unit(name).file.words("Install", "WantedBy"):
            link = manager.unit_dir / f"{target}.wants" / name
            link.parent.mkdir(exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(path)
                answer.err(f"Created symlink {link} → {path}.")
    await manager.daemon_reload()
    return await _job(manager, "start", names, options, answer) if options.has("--now") else 0


async def _disable(manager: Manager, names: list[str], options: Options, answer: Answer) -> int:
    for name in names:
        links = list(manager.unit_dir.glob(f"*.target.wants/{name}"))
        if not links and not (manager.unit_dir / name).exists():
            answer.err(f"Failed to disable unit: Unit file {name} does not exist.")
            return 1
        for link in links:
            link.unlink()
            answer.err(f'Removed "{link}".')
    await manager.daemon_reload()
    return await _job(manager, "stop", names, options, answer) if options.has("--now") else 0


async def _is_active(manager: Manager, names: list[str], options: Options, answer: Answer) -> int:
    states = [manager.unit(name).active for name in names]
    answer.out("\n".join(states))
    return 0 if "active" in states else 3


async def _is_failed(manager: Manager, names: list[str], options: Options, answer: Answer) -> int:
    states = [manager.unit(name).active for name in names]
    answer.out("\n".join(states))
    return 0 if "failed" in states else 1


async def _is_enabled(manager: Manager, names: list[str], options: Options, answer: Answer) -> int:
    code = 1
    for name in names:
        state = file_state(manager, name)
        if not state:
            answer.err(f"Failed to get unit file state for {name}: No such file or directory")
            return 1
        answer.out(state)
        code = 0 if state in ("enabled", "static") else code
    return code


async def _is_system_running(manager: Manager, names: list[str], options: Options, answer: Answer) -> int:
    while options.has("--wait") and manager.booting:
        await asyncio.sleep(0.02)
    failed = any(unit.active == "failed" for unit in manager.units.values())
    state = "starting" if manager.booting else "degraded" if failed else "running"
    answer.out(state)
    return 0 if state == "running" else 1


async def _cat(manager: Manager, names: list[str], options: Options, answer: Answer) -> int:
    for name in names:
        file = manager.unit(name).file
        if file.path is None:
            answer.err(f"No files found for {name}.")
            return 1
        parts = [
            f"# {path}\n{Path(path).read_text().rstrip(chr(10))}" for path in (file.path, *file.drop_ins)
        ]
        answer.out("\n\n".join(parts))
    return 0


async def _list_units(manager: Manager, names: list[str], options: Options, answer: Answer) -> int:
    kinds = [kind for value in options.all("-t", "--type") for kind in value.split(",")]
    rows = []
    for name in manager.known():
        unit = manager.unit(name)
        shown = options.has("-a", "--all") or unit.active != "inactive"
        if shown and (not kinds or name.rpartition(".")[2] in kinds) and (not names or name in names):
            load = properties(manager, unit)["LoadState"]
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
    if "json" in options.all("-o", "--output"):
        answer.out(json.dumps(rows))
    else:
        for row in rows:
            answer.out(" ".join(row.values()))
    return 0


async def _list_unit_files(manager: Manager, names: list[str], options: Options, answer: Answer) -> int:
    kinds = [kind for value in options.all("-t", "--type") for kind in value.split(",")]
    for path in sorted(manager.unit_dir.iterdir()):
        if path.is_file() and (not kinds or path.suffix[1:] in kinds) and (not names or path.name in names):
            answer.out(f"{path.name} {file_state(manager, path.name)} enabled")
    return 0


async def _status(manager: Manager, names: list[str], options: Options, answer: Answer) -> int:
    code = 0
    for name in names:
        unit = manager.unit(name)
        if unit.file.path is None:
            answer.err(f"Unit {name} could not be found.")
            return 4
        answer.out(
            f"{unit.title}\n     Loaded: loaded ({unit.file.path})\n     Active: {unit.active} ({unit.sub})"
        )
        code = code if unit.active == "active" else 3
    return code


async def _reboot(manager: Manager, names: list[str], options: Options, answer: Answer) -> int:
    answer.reboot = True
    return 0


_VERBS: dict[str, Verb] = {
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
