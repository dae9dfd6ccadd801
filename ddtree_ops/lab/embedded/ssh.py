"""The embedded node's SSH front: real sessions, forwarding to loopback, and a link that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from pathlib import Path

import asyncssh

from ddtree_ops.lab.embedded.process import base_environment, group_alive, open_pipe, signal_group

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class _Policy(asyncssh.SSHServer):
    """Forwards to loopback alone, as an operator needs it."""

    def connection_requested(self, dest_host: str, *_: object) -> bool:
        return dest_host in _LOOPBACK


class SshFront:
    """Listens on one loopback port; bytes pass through a relay that can stop passing them."""

    def __init__(self, directory: Path, root: Path, port: int) -> None:
        self._directory, self._root, self._port = directory, root, port
        self._listener: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._sessions: set[int] = set()
        self._passing = asyncio.Event()
        self._passing.set()

    async def open(self) -> None:
        """Starts to listen."""
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self._port)

    async def close(self) -> None:
        """Drops every link without a word and ends what its sessions run."""
        if self._listener:
            self._listener.close()
        links, self._links = self._links, set()
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)
        for pid in self._sessions:
            signal_group(pid, signal.SIGKILL)
        self._sessions.clear()

    def cut(self) -> None:
        """Holds every byte back, in both directions; links stay open and new ones get no answer."""
        self._passing.clear()

    def restore(self) -> None:
        """Lets held and new bytes pass again."""
        self._passing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._links.add(task)
        outer, inner = socket.socketpair()
        near_reader, near_writer = await asyncio.open_connection(sock=inner)
        pumps = (self._pump(reader, near_writer), self._pump(near_reader, writer))
        serving = asyncio.create_task(self._serve(outer))
        try:
            await asyncio.gather(*pumps)
        finally:
            self._links.discard(task)
            writer.transport.abort()
            near_writer.transport.abort()
            with contextlib.suppress(Exception):
                (await serving).abort()

    async def _serve(self, link: socket.socket) -> asyncssh.SSHServerConnection:
        return await asyncssh.run_server(
            link,
            server_factory=_Policy,
            server_host_keys=[str(self._directory / "host_key")],
            authorized_client_keys=str(self._directory / "authorized_keys"),
            process_factory=self._session,
            sftp_factory=True,
            allow_scp=False,
            encoding=None,
            line_editor=False,
            login_timeout=30,
        )

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                await self._passing.wait()
                writer.write(data)
                await writer.drain()
            await self._passing.wait()
            if writer.can_write_eof():
                writer.write_eof()

    async def _session(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        home = self._root / "root"
        user = {"HOME": str(home), "USER": str(process.get_extra_info("username"))}
        (out, out_sink), (err, err_sink) = await open_pipe(), await open_pipe()
        try:
            child = await asyncio.create_subprocess_exec(
                *("/bin/sh", *(("-c", process.command) if process.command else ())),
                env=base_environment(self._root) | user,
                cwd=home,
                stdin=asyncio.subprocess.PIPE,
                stdout=out_sink,
                stderr=err_sink,
                start_new_session=True,
            )
        finally:
            os.close(out_sink)
            os.close(err_sink)
        assert child.stdin
        self._sessions.add(child.pid)
        feed = asyncio.create_task(_feed(process.stdin, child.stdin))
        drains = [
            asyncio.create_task(_drain(*pair)) for pair in ((out, process.stdout), (err, process.stderr))
        ]
        code = await _exit_code(child)
        await asyncio.wait(drains, timeout=1)
        feed.cancel()
        if not group_alive(child.pid):
            self._sessions.discard(child.pid)
        if code < 0:
            process.exit_with_signal(signal.Signals(-code).name[3:])
        else:
            process.exit(code)


async def _exit_code(child: asyncio.subprocess.Process) -> int:
    """As soon as the child is gone; asyncio's own wait would stay until its stdin is closed as well."""
    while child.returncode is None:
        await asyncio.sleep(0.002)
    return child.returncode


async def _feed(source: asyncssh.SSHReader[bytes], child: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncssh.Error):
        while data := await source.read(65536):
            child.write(data)
            await child.drain()
    with contextlib.suppress(ConnectionError):
        child.close()


async def _drain(child: asyncio.StreamReader, sink: asyncssh.SSHWriter[bytes]) -> None:
    with contextlib.suppress(ConnectionError, asyncssh.Error):
        while data := await child.read(65536):
            sink.write(data)
            await sink.drain()
