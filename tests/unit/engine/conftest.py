"""Small HTTP servers on loopback that answer as a test says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

Answer = tuple[int, object]  # status, and a JSON value, text or bytes
Route = Callable[[dict[str, object]], Answer]


@dataclass
class StandingClock:
    """Real waits, cut short: `sleep` moves this clock on without waiting."""

    slept: float = 0.0
    sleeps: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return time.monotonic() + self.slept

    def utc(self) -> str:
        return "2026-11-29T10:00:00Z"

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.sleeps.append(seconds)


@pytest.fixture
def clock() -> StandingClock:
    return StandingClock()


@pytest.fixture
def serve() -> Iterator[Callable[[Mapping[str, Route]], str]]:
    """Starts a server whose routes are "METHOD /path" → function of the parsed body; gives its base URL."""
    running: list[ThreadingHTTPServer] = []

    def start(routes: Mapping[str, Route]) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(routes))
        server.daemon_threads = True
        running.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def _handler(routes: Mapping[str, Route]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            text = self.rfile.read(length)
            asked = {
                "body": json.loads(text) if text else None,
                "headers": dict(self.headers),
                "raw": self.wfile,
            }
            route = routes.get(f"{self.command} {self.path}", lambda _: (404, {"detail": "Not Found"}))
            status, body = route(asked)
            if status:
                self._send(status, body)

        def _send(self, status: int, body: object) -> None:
            data = (
                body
                if isinstance(body, bytes)
                else (body if isinstance(body, str) else json.dumps(body)).encode()
            )
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
