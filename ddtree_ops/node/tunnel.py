"""A local port whose connections come out on the other side of an SSH link."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

CHUNK = 65536
PATIENCE_S = 3.0  # for connections to end by themselves once their near end is closed


class Pipe(Protocol):
    """One opened connection on the far side; an SSH channel is one."""

    def recv(self, nbytes: int, /) -> bytes: ...
    def sendall(self, data: bytes, /) -> None: ...
    def shutdown_write(self) -> None: ...
    def close(self) -> None: ...


class Tunnel:
    """Listens on a free loopback port while its context lasts; entering gives the port.

    `connect` opens the far side for each connection; when it raises OSError or EOFError, that
    connection is closed, as a port where nobody listens would.
    """

    def __init__(self, connect: Callable[[], Pipe]) -> None:
        self._connect = connect
        self._listener = socket.socket()
        self._closing = False
        self._lock = threading.Lock()
        self._open: set[tuple[socket.socket, Pipe]] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> int:
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(128)
        self._start(self._accept)
        return int(self._listener.getsockname()[1])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closing = True
            ends = list(self._open)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._listener.close()
        # Only the near ends are closed here. A channel that is closed while another thread reads or writes
        # it can send on after its CLOSE, and an SSH server ends the whole link for that.
        for near, _ in ends:
            with contextlib.suppress(OSError):
                near.shutdown(socket.SHUT_RDWR)
        self._wait(PATIENCE_S)
        for near, far in ends:
            _close(near, far)  # a far side that took no notice of our end of file
        self._wait(PATIENCE_S)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="tunnel", daemon=True)
        self._threads = [old for old in self._threads if old.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start(self._serve, near)

    def _serve(self, near: socket.socket) -> None:
        try:
            far = self._connect()
        except (OSError, EOFError):
            near.close()
            return
        with self._lock:
            self._open.add((near, far))
            closing = self._closing
        if closing:
            with contextlib.suppress(OSError):
                near.shutdown(socket.SHUT_RDWR)
        back = threading.Thread(target=_pump, args=(far.recv, near.sendall, lambda: _end(near)), daemon=True)
        back.start()
        _pump(near.recv, far.sendall, far.shutdown_write)
        back.join()
        _close(near, far)
        with self._lock:
            self._open.discard((near, far))


def _pump(read: Callable[[int], bytes], write: Callable[[bytes], None], end: Callable[[], None]) -> None:
    """Carries bytes until the reader ends, then ends the writer."""
    with contextlib.suppress(OSError, EOFError):
        while data := read(CHUNK):
            write(data)
    with contextlib.suppress(OSError, EOFError):
        end()


def _end(near: socket.socket) -> None:
    near.shutdown(socket.SHUT_WR)


def _close(near: socket.socket, far: Pipe) -> None:
    with contextlib.suppress(OSError, EOFError):
        far.close()
    with contextlib.suppress(OSError):
        near.shutdown(socket.SHUT_RDWR)
    near.close()
