"""One embedded node as a process: SSH in front, the stand-in for PID 1 behind it.

`python -m ddtree_ops.lab.embedded.server NODE_DIRECTORY PORT` runs until it is told `down`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path

from ddtree_ops.lab.embedded.answer import Answer
from ddtree_ops.lab.embedded.journal import Journal
from ddtree_ops.lab.embedded.journalctl import journalctl, systemd_analyze
from ddtree_ops.lab.embedded.manager import Manager
from ddtree_ops.lab.embedded.process import ROOT_VARIABLE, describe_python, kill_marked
from ddtree_ops.lab.embedded.ssh import SshFront
from ddtree_ops.lab.embedded.systemctl import systemctl

_COMMANDS = {"systemctl": systemctl, "journalctl": journalctl, "systemd-analyze": systemd_analyze}
STAND_INS = Path("usr/lib/ddtree-lab")  # below the node's root; first on PATH


class NodeServer:
    """Holds the node together: its units, its SSH front, and the socket that stand-ins speak to."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory, self.root = directory, directory / "root"
        self.manager = Manager(self.root, Journal(directory / "journal.jsonl"))
        self.ssh = SshFront(directory, self.root, port)
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Boots and serves until told to go down; then ends every process of the node."""
        os.chdir(self.directory)  # the socket's path must stay short
        Path("control").unlink(missing_ok=True)
        control = await asyncio.start_unix_server(self._control, "control")
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._over.set)
        await self.ssh.open()
        self._later(self.manager.boot())
        Path("ready").write_text(f"{os.getpid()}\n")
        await self._over.wait()
        await self._power_off()
        control.close()
        self.manager.journal.close()

    async def reboot(self) -> None:
        """Drops every link, kills everything, and boots again; what is on disk stays."""
        await self._power_off()
        await self.ssh.open()
        await self.manager.boot()

    async def _power_off(self) -> None:
        await self.ssh.close()
        await self.manager.shut_down()
        kill_marked(f"{ROOT_VARIABLE}={self.root}")

    async def _control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def send(kind: str, value: str | int) -> None:
            writer.write(json.dumps([kind, value]).encode() + b"\n")

        with contextlib.suppress(ConnectionError, json.JSONDecodeError):
            request = json.loads(await reader.readline())
            answer = Answer(send)
            work = asyncio.create_task(self._answer(request, answer))
            leaves = asyncio.create_task(reader.read(1))
            await asyncio.wait({work, leaves}, return_when=asyncio.FIRST_COMPLETED)
            leaves.cancel()
            if work.done():
                send("rc", _outcome(work, answer))
            else:
                work.cancel()
            await writer.drain()
            if answer.reboot:
                self._later(self.reboot())
        with contextlib.suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()

    async def _answer(self, request: dict[str, object], answer: Answer) -> int:
        argv = [str(word) for word in request["argv"]] if isinstance(request["argv"], list) else []
        if argv[0] == "lab-admin":
            return self._admin(argv[1], answer)
        if argv[0] == "systemd-analyze":
            argv = [str(Path(str(request["cwd"])) / word) if word.startswith("./") else word for word in argv]
        return await _COMMANDS[argv[0]](self.manager, argv[1:], answer)

    def _admin(self, word: str, answer: Answer) -> int:
        match word:
            case "ping":
                answer.out(str(os.getpid()))
            case "cut":
                self.ssh.cut()
            case "restore":
                self.ssh.restore()
            case "reboot":
                answer.reboot = True
            case "down":
                self._over.set()
            case _:
                answer.err(f"unknown request: {word}")
                return 1
        return 0

    def _later(self, what: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _outcome(work: asyncio.Task[int], answer: Answer) -> int:
    error = work.exception()
    if error is None:
        return work.result()
    answer.err(f"stand-in: {type(error).__name__}: {error}")
    return 1


def install_stand_ins(root: Path) -> None:
    """Writes the stand-in programs, and a `python3`, into the node."""
    folder = root / STAND_INS
    folder.mkdir(parents=True, exist_ok=True)
    client = Path(__file__).with_name("standin.py")
    python = describe_python()
    scripts = {name: f'exec "{python}" -I -S "{client}" {name} "$@"' for name in _COMMANDS}
    scripts |= {"python3": f'exec "{python}" "$@"', "reboot": "exec systemctl reboot"}
    for name, line in scripts.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n# stand-in of the ddtree-ops embedded lab\n{line}\n")
        path.chmod(0o755)


def main() -> int:
    """Runs one node; the lock file tells others, without doubt, whether it lives and as which process."""
    directory, port = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 3
        asyncio.run(NodeServer(directory, port).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
