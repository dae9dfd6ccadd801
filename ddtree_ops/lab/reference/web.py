"""HTTP/1.1 over the standard library's threads: finds the route, frames the reply, logs as uvicorn does."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from . import log, openai, routes
from .engine import Engine
from .routes import Call, Reply, Route, error

GET: dict[str, Route] = {
    "/health": routes.health,
    "/health_generate": routes.health,
    "/model_info": routes.model_info,
    "/get_model_info": routes.deprecated(routes.model_info),
    "/server_info": routes.server_info,
    "/get_server_info": routes.deprecated(routes.server_info),
    "/flush_cache": routes.flush_cache,
    "/metrics": routes.metrics,
    "/v1/models": openai.models,
}
POST: dict[str, Route] = {
    "/generate": routes.generate,
    "/flush_cache": routes.flush_cache,
    "/tokenize": routes.tokenize,
    "/v1/tokenize": routes.tokenize,
    "/detokenize": routes.detokenize,
    "/v1/detokenize": routes.detokenize,
    "/v1/completions": openai.completions,
    "/v1/chat/completions": openai.chat_completions,
}


class Server(ThreadingHTTPServer):
    """Listens from construction on; raises OSError when the port is taken."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        super().__init__((engine.args.host, engine.args.port), Handler)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_GET(self) -> None:
        self._serve(GET, POST)

    def do_POST(self) -> None:
        self._serve(POST, GET)

    def do_PUT(self) -> None:
        self._serve({"/generate": routes.generate}, POST)

    def _serve(self, table: dict[str, Route], others: dict[str, Route]) -> None:
        path = self.path.partition("?")[0]
        route = table.get(path)
        if table is GET and path.startswith("/v1/models/"):
            route = openai.model
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            if not self._allowed(path):
                reply = Reply(401, json={"error": "Unauthorized"})
            else:
                reply = self._reply(route, path, raw) if route else _unknown(path in others)
            self._send(reply)
        except (BrokenPipeError, ConnectionError):
            self.close_connection = True

    def _allowed(self, path: str) -> bool:
        key = self.server.engine.args.api_key
        given = self.headers.get("Authorization")
        return key is None or given == f"Bearer {key}" or path.startswith(("/health", "/metrics"))

    def _reply(self, route: Route, path: str, raw: bytes) -> Reply:
        try:
            body = json.loads(raw) if raw else {}
        except ValueError as wrong:
            return error(f"Invalid JSON: {wrong}")
        if not isinstance(body, dict):
            return error("The body should be a JSON object.")
        return route(self.server.engine, Call(path, body, self._gone))

    def _gone(self) -> bool:
        ready, _, _ = select.select([self.connection], [], [], 0)
        return bool(ready) and not self.connection.recv(1, socket.MSG_PEEK)

    def _send(self, reply: Reply) -> None:
        phrase = HTTPStatus(reply.status).phrase
        client = "{}:{}".format(*self.client_address[:2])
        log.access.info('%s - "%s" %d %s', client, self.requestline, reply.status, phrase)
        self.send_response_only(reply.status, phrase)
        self.send_header("Server", "uvicorn")
        if reply.events is not None:
            self._send_events(reply.events)
            return
        plain = reply.text is not None
        data = str(reply.text).encode() if plain else json.dumps(reply.json).encode()
        self.send_header("Content-Type", "text/plain; charset=utf-8" if plain else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send_events(self, events: Iterator[str]) -> None:
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            data = f"data: {event}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Malformed requests, in the words of http.server."""
        log.http.warning(format, *args)


def _unknown(elsewhere: bool) -> Reply:
    if elsewhere:
        return Reply(405, json={"detail": "Method Not Allowed"})
    return Reply(404, json={"detail": "Not Found"})
