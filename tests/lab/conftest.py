"""Labs for the tests in this folder: booted once a session, one of each kind, always taken down."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh
import pytest

from ddtree_ops.lab.hosts import Kind, Lab, LabHost
from ddtree_ops.lab.image import cache_directory
from ddtree_ops.lab.kinds import open_lab
from ddtree_ops.lab.systemd.lab import why_not

KINDS = [Kind.EMBEDDED, pytest.param(Kind.SYSTEMD, marks=pytest.mark.systemd)]
_WAIT_S = 20.0
_COUNT = """
import pathlib, sys
lines = []
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        lines.append(path.read_bytes().replace(b"\\0", b" ").decode(errors="replace").strip())
    except OSError:
        pass
print(lines.count(sys.argv[1]))
"""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@dataclass
class Node:
    """One lab node as its operator sees it: commands over SSH, files past it."""

    lab: Lab
    host: LabHost
    loop: asyncio.AbstractEventLoop
    units: list[str] = field(default_factory=list)
    _link: asyncssh.SSHClientConnection | None = None
    link_errors = (asyncssh.Error, ConnectionError)

    def sh(self, *argv: str, stdin: str = "", timeout: float = _WAIT_S) -> Done:
        """Runs argv on the node over SSH."""
        return self.wait_for(self._run(shlex.join(argv), stdin), timeout)

    def shell(self, line: str, stdin: str = "") -> Done:
        """Runs a shell line on the node over SSH."""
        return self.wait_for(self._run(line, stdin), _WAIT_S)

    def connect(self, **options: object) -> asyncssh.SSHClientConnection:
        """A new link, by the files that the lab wrote."""
        return self.wait_for(self._connect(options), _WAIT_S)

    def wait_for(self, what, timeout: float):
        return asyncio.run_coroutine_threadsafe(what, self.loop).result(timeout)

    def file(self, path: str) -> Path:
        """Where this process opens a path of the node (given without the node's prefix)."""
        return self.lab.files(self.host.name) / path.lstrip("/")

    def path(self, path: str) -> str:
        """The same path as the node's own processes know it."""
        return self.host.root + path

    def unit(self, name: str, text: str, *, reload: bool = True) -> None:
        """Puts a unit file on the node; it goes again when the test ends."""
        path = self.file("/etc/systemd/system") / name
        path.write_text(text)
        self.units.append(name)
        if reload:
            assert self.sh("systemctl", "daemon-reload") == Done(0, "", "")

    def show(self, unit: str, *names: str) -> dict[str, str]:
        done = self.sh("systemctl", "show", unit, "-p", ",".join(names), "--no-pager")
        assert done.code == 0, done
        return dict(line.split("=", 1) for line in done.out.splitlines())

    def states(self, unit: str) -> tuple[str, str, str]:
        shown = self.show(unit, "ActiveState", "SubState", "Result")
        return shown["ActiveState"], shown["SubState"], shown["Result"]

    def until(self, unit: str, **wanted: str) -> None:
        """Waits until the unit shows these properties."""
        eventually(lambda: {name: self.show(unit, name).get(name) for name in wanted}, wanted)

    def journal(self, unit: str, *options: str) -> list[dict[str, object]]:
        done = self.sh("journalctl", "--no-pager", "-o", "json", "-u", unit, *options)
        assert done.code == 0, done
        return [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]

    def messages(self, unit: str, *options: str) -> list[object]:
        return [entry["MESSAGE"] for entry in self.journal(unit, *options)]

    def count(self, command: str) -> int:
        """How many processes of the node have exactly this command line."""
        return int(self.sh("python3", "-I", "-S", "-c", _COUNT, command).out)

    def clean(self) -> None:
        """Ends and removes the test's units."""
        names = " ".join(self.units)
        if not names:
            return
        self.shell(f"systemctl kill -s KILL {names}; systemctl stop {names}; systemctl reset-failed {names}")
        for name in self.units:
            for path in self.file("/etc/systemd/system").glob(f"**/{name}"):
                path.unlink()
        self.units.clear()

    async def _run(self, line: str, stdin: str) -> Done:
        if self._link is None or self._link.is_closed():
            self._link = await self._connect({})
        done = await self._link.run(line, input=stdin, encoding="utf-8")
        return Done(done.exit_status or 0, str(done.stdout), str(done.stderr))

    async def _connect(self, options: dict[str, object]) -> asyncssh.SSHClientConnection:
        chosen: dict[str, object] = {
            "username": self.host.user,
            "client_keys": [str(self.host.identity_file)],
            "known_hosts": str(self.host.known_hosts),
            "config": None,
            "agent_path": None,
            "connect_timeout": 5,
        }
        return await asyncssh.connect(self.host.address, self.host.port, **(chosen | options))


def eventually(look: Callable[[], object], wanted: object) -> None:
    """Looks again and again until it sees what is wanted; fails with what it saw last."""
    deadline = time.monotonic() + _WAIT_S
    seen = look()
    while seen != wanted and time.monotonic() < deadline:
        time.sleep(0.05)
        seen = look()
    assert seen == wanted


def need(kind: Kind) -> None:
    """Skips with the reason where this kind cannot run; in CI that is a failure."""
    reason = why_not() if kind is Kind.SYSTEMD else ""
    if reason and os.environ.get("CI") == "true":
        pytest.fail(f"CI must run the systemd hosts: {reason}")
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def open_kind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Kind], Lab]]:
    """Boots a lab of a kind when it is first asked for."""
    labs: dict[Kind, Lab] = {}

    def get(kind: Kind) -> Lab:
        if kind not in labs:
            need(kind)
            labs[kind] = open_lab(kind, tmp_path_factory.mktemp("lab") / kind, cache_directory())
            labs[kind].up(1)
        return labs[kind]

    yield get
    for lab in labs.values():
        lab.down()


@pytest.fixture(scope="module", params=KINDS)
def lab(request: pytest.FixtureRequest, open_kind: Callable[[Kind], Lab]) -> Lab:
    """One booted lab; tests that use it run once for each kind."""
    return open_kind(request.param)


@pytest.fixture(scope="module")
def linked(lab: Lab) -> Iterator[Node]:
    """The lab's first node with an event loop whose thread can reach it."""
    loop = asyncio.new_event_loop()
    with lab.entered():
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
    node = Node(lab, lab.status()[0], loop)
    yield node
    if node._link:
        node._link.abort()
    with suppress(Exception):
        node.wait_for(asyncio.sleep(0.05), 5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def node(linked: Node) -> Iterator[Node]:
    """A node without units of other tests."""
    yield linked
    linked.clean()
