"""Starting and ending a unit's processes; process groups and an environment marker stand in for cgroups."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ddtree_ops.lab.embedded.journal import split_output

ROOT_VARIABLE = "DDTREE_OPS_ROOT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One Exec line, ready to run."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    cwd: str
    limits: tuple[tuple[str, str], ...] = ()
    ignore_errors: bool = False


@dataclass(slots=True)
class Running:
    """A process and the task that reads what it, or a child that kept its output, prints."""

    process: asyncio.subprocess.Process
    output: asyncio.Task[None]


async def spawn(command: Command, on_line: Callable[[int, bytes], None]) -> Running:
    """Starts a command in its own session; `on_line` gets each line that it prints."""
    reader, sink = await open_pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *_with_limits(command),
            env=command.environment,
            cwd=command.cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    finally:
        os.close(sink)
    output = asyncio.get_running_loop().create_task(_pump(reader, process.pid, on_line))
    return Running(process, output)


async def open_pipe() -> tuple[asyncio.StreamReader, int]:
    """A pipe of our own: asyncio's would keep `wait` from returning while a child holds it open."""
    source, sink = os.pipe()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(source, "rb", 0))
    return reader, sink


def trouble(command: Command) -> int:
    """systemd's exit status for a command that cannot start (200 CHDIR, 203 EXEC), or 0."""
    if not Path(command.cwd).is_dir():
        return 200
    program = command.argv[0]
    if "/" not in program:
        directories = command.environment.get("PATH", "").split(":")
        return 0 if any(os.access(Path(folder) / program, os.X_OK) for folder in directories) else 203
    return 0 if os.access(program, os.X_OK) and Path(program).is_file() else 203


def signal_group(pid: int, number: int) -> None:
    """Signals every process of the group that `pid` leads, if any is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def group_alive(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def kill_marked(marker: str, *, spare: frozenset[int] = frozenset()) -> list[int]:
    """SIGKILLs this user's processes that carry `NAME=value` in their environment; returns their ids."""
    found = [pid for pid in marked(marker) if pid not in spare and pid != os.getpid()]
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return found


def marked(marker: str) -> list[int]:
    """Ids of this user's processes whose environment holds the marker."""
    if not Path("/proc/self/environ").exists():
        return _marked_by_ps(marker)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if marker.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _marked_by_ps(marker: str) -> list[int]:
    listing = subprocess.run(
        ("ps", "-axeww", "-o", "pid=,command="), capture_output=True, text=True, check=True
    )
    lines = (line.split() for line in listing.stdout.splitlines())
    return [int(words[0]) for words in lines if words and marker in words[1:]]


def _with_limits(command: Command) -> tuple[str, ...]:
    """The argv, under a shell that sets what limits it may and then becomes the command."""
    files = dict(command.limits).get("LimitNOFILE", "").split(":")[0]
    if not files:
        return command.argv
    wish = "unlimited" if files == "infinity" else files
    script = f'ulimit -n {wish} 2>/dev/null || ulimit -n "$(ulimit -H -n)"; exec "$0" "$@"'
    return ("/bin/sh", "-c", script, *command.argv)


async def _pump(stream: asyncio.StreamReader, pid: int, on_line: Callable[[int, bytes], None]) -> None:
    held = b""
    while data := await stream.read(65536):
        lines, held = split_output(held, data)
        for line in lines:
            on_line(pid, line)
    if held.strip():
        on_line(pid, held)


def base_environment(root: Path) -> dict[str, str]:
    """What each process of the node starts with; the stand-ins come first on PATH."""
    standard = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    kept = {
        name: os.environ[name] for name in ("LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT") if name in os.environ
    }
    return kept | {"PATH": f"{root}/usr/lib/ddtree-lab:{standard}", ROOT_VARIABLE: str(root)}


def describe_python() -> str:
    """The interpreter that the node's `python3` runs: the one beneath any virtual environment."""
    return getattr(sys, "_base_executable", None) or sys.executable
