"""A server for tests: real sockets, and answers that a test writes down piece by piece."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from ddtree_ops.measure.client import Prompt, Route, Target

Piece = tuple[float, bytes] | None  # seconds to wait, bytes to send; None: close at once
Script = Callable[[int, dict[str, Any]], Sequence[Piece]]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: object) -> bytes:
    return chunk(b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n")


def native(tokens: int, *, steps: int | None = None, finish: str | None = None, **more: object) -> bytes:
    """One event of /generate."""
    meta: dict[str, object] = {"completion_tokens": tokens, "prompt_tokens": 5, "cached_tokens": 0}
    meta["finish_reason"] = {"type": finish} if finish else None
    if steps is not None:
        meta["spec_verify_ct"] = steps
    return event({"text": "ab " * tokens, "meta_info": meta | more})


def stream(*pieces: bytes, gap: float = 0.0) -> list[Piece]:
    """Head, pieces, [DONE] and end; `gap` seconds before each piece."""
    return [(0.0, HEAD), *((gap, piece) for piece in pieces), (0.0, event(b"[DONE]") + END)]


def whole(body: bytes, status: str = "200 OK", headers: str = "") -> list[Piece]:
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}content-length: {len(body)}\r\n\r\n"
    )
    return [(0.0, head.encode() + body)]


class ScriptedServer:
    """Answers request n with script(n, body); keeps what it was asked."""

    def __init__(self, script: Script) -> None:
        self.script, self.requests, self.heads = script, [], []
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._sockets: list[socket.socket] = []
        self._threads[0].start()

    def target(self, route: Route = Route.NATIVE, **more: Any) -> Target:
        return Target(host="127.0.0.1", port=self.port, route=route, **more)

    def stop(self) -> None:
        self._stopping.set()
        for sock in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):  # closed by the other side already
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(sock)
            self._threads.append(threading.Thread(target=self._converse, args=(sock,)))
            self._threads[-1].start()

    def _converse(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock, sock.makefile("rb") as lines:
            while not self._stopping.is_set() and self._one(sock, lines):
                pass

    def _one(self, sock: socket.socket, lines: Any) -> bool:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = lines.readline()
            if not line:
                return False
            head += line
        at = head.lower().find(b"content-length:")
        body = json.loads(lines.read(int(head[at + 15 :].split()[0]))) if at >= 0 else {}
        with self._lock:
            number = len(self.requests)
            self.requests.append(body)
            self.heads.append(head)
        for piece in self.script(number, body):
            if piece is None:
                sock.shutdown(socket.SHUT_RDWR)
                return False
            if piece[0]:
                time.sleep(piece[0])
            sock.sendall(piece[1])
        return True


@pytest.fixture
def serve() -> Iterator[Callable[[Script], ScriptedServer]]:
    """Starts servers that the test scripts, and stops them afterwards."""
    servers: list[ScriptedServer] = []

    def start(script: Script) -> ScriptedServer:
        servers.append(ScriptedServer(script))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def ask() -> Callable[[int], list[Prompt]]:
    """So many different prompts."""
    return lambda count: [Prompt(id=f"p{n}", text=f"say {n}", max_tokens=8) for n in range(count)]
