"""A server that emits tokens on a known schedule, to measure the clients that measure servers.

Request number k (in order of arrival) gets its first token after a delay drawn from k, then steps of
1 to 8 tokens every 12 ms until its max_tokens are out. Nothing depends on load. GET /truth gives what
was due and what was sent, in CLOCK_MONOTONIC nanoseconds, which every process of this machine shares.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import random
import select
import socket
import time
from dataclasses import dataclass, field
from functools import cache

STEP_NS = 12_000_000
FIRST_NS = (60_000_000, 240_000_000)
WORD = b"tok "
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
AHEAD = 4096, 256  # requests, and their tokens, whose plans are made before the first one comes


@dataclass(frozen=True, slots=True)
class Plan:
    """The schedule of one request: delay of the first token, then tokens of each step."""

    first_ns: int
    steps: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return 1 + sum(self.steps)

    @property
    def duration_ns(self) -> int:
        return self.first_ns + len(self.steps) * STEP_NS


@cache
def plan(number: int, max_tokens: int, seed: int = 0) -> Plan:
    """The schedule of request `number`; the same for every client, whenever it comes."""
    draw = random.Random(seed * 1_000_003 + number)
    left, steps = max_tokens - 1, []
    first = draw.randint(*FIRST_NS)
    while left > 0:
        steps.append(min(left, draw.randint(1, 8)))
        left -= steps[-1]
    return Plan(first, tuple(steps))


@dataclass(slots=True, eq=False)
class Stream:
    sock: socket.socket
    inbox: bytearray = field(default_factory=bytearray)
    unsent: bytes = b""
    number: int = -1
    plan: Plan | None = None
    route: str = ""
    arrived: int = 0
    position: int = 0
    count: int = 0
    piece: bytes = b""  # the next one, made while there is time
    sent: list[int] = field(default_factory=list)


class Server:
    def __init__(self, host: str, port: int, seed: int) -> None:
        self.seed, self.number, self.closed = seed, 0, False
        self.listener = socket.create_server((host, port), backlog=2048)
        self.listener.setblocking(False)
        self.poll = select.epoll()
        self.poll.register(self.listener.fileno(), select.EPOLLIN)
        self.streams: dict[int, Stream] = {}
        self.dues: list[tuple[int, int, Stream]] = []
        self.records: list[dict[str, object]] = []
        self.text = WORD * 8192
        for number in range(AHEAD[0]):
            plan(number, AHEAD[1], seed)

    def serve(self) -> None:
        gc.disable()
        while True:
            for fd, events in self.poll.poll(0):  # never sleeps: a core that does is late to wake
                self.ready(fd, events, time.perf_counter_ns())
            self.emit()

    def ready(self, fd: int, events: int, now: int) -> None:
        if fd == self.listener.fileno():
            self.accept()
            return
        stream = self.streams[fd]
        if events & select.EPOLLOUT and stream.unsent:
            self.write(stream, b"")
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            try:
                data = stream.sock.recv(1 << 20)
            except OSError:
                data = b""
            if not data:
                self.close(stream)
                return
            stream.inbox += data
            self.take(stream, now)

    def accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.streams[sock.fileno()] = Stream(sock)
            self.poll.register(sock.fileno(), select.EPOLLIN)

    def close(self, stream: Stream) -> None:
        fd = stream.sock.fileno()
        if fd in self.streams:
            self.poll.unregister(fd)
            del self.streams[fd]
        stream.plan = None
        stream.sock.close()

    def take(self, stream: Stream, now: int) -> None:
        """Handles a request once all of it is there."""
        end = stream.inbox.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(stream.inbox[:end]).lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n")[0]) if at >= 0 else 0
        if len(stream.inbox) < end + 4 + length:
            if b"100-continue" in head:
                stream.sock.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        path = bytes(stream.inbox[:end]).split(b" ")[1].decode().split("?")[0]
        body = bytes(stream.inbox[end + 4 : end + 4 + length])
        del stream.inbox[: end + 4 + length]
        if path in ("/generate", "/v1/completions", "/v1/chat/completions"):
            self.start(stream, path, json.loads(body), now)
        else:
            self.answer(stream, self.control(path))

    def control(self, path: str) -> object:
        if path == "/truth":
            records, self.records, self.number = self.records, [], 0
            return records
        if path == "/v1/models":
            return {"object": "list", "data": [{"id": "truth", "object": "model", "max_model_len": 65536}]}
        if path in ("/get_model_info", "/model_info"):
            return {"model_path": "truth", "is_generation": True}
        if path in ("/get_server_info", "/server_info"):
            return {"version": "0.5.11", "internal_states": [{"avg_spec_accept_length": 7.77}]}
        return {}

    def answer(self, stream: Stream, value: object) -> None:
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.write(stream, head.encode() + body)

    def start(self, stream: Stream, path: str, request: dict[str, object], now: int) -> None:
        sampling = request.get("sampling_params") if path == "/generate" else request
        wanted = sampling if isinstance(sampling, dict) else {}
        most = (
            wanted.get("max_new_tokens")
            or wanted.get("max_completion_tokens")
            or wanted.get("max_tokens")
            or 16
        )
        if not request.get("stream"):
            self.answer(stream, self.whole(path, int(str(most))))
            return
        stream.number, self.number = self.number, self.number + 1
        stream.plan = plan(stream.number, int(str(most)), self.seed)
        stream.route, stream.arrived, stream.position, stream.count = path, now, 0, 0
        stream.sent = []
        stream.piece = HEAD + self.next_piece(stream, stream.plan)
        heapq.heappush(self.dues, (now + stream.plan.first_ns, stream.number, stream))

    def whole(self, path: str, tokens: int) -> dict[str, object]:
        text = (WORD * tokens).decode()
        usage = {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": 8 + tokens}
        if path == "/generate":
            return {"text": text, "meta_info": {"completion_tokens": tokens, "prompt_tokens": 8}}
        choice = {"index": 0, "text": text, "message": {"role": "assistant", "content": text}}
        return {"id": "t", "object": "x", "choices": [choice | {"finish_reason": "stop"}], "usage": usage}

    def emit(self) -> None:
        """Sends what is due, looking at the network again every few dozen pieces."""
        for _ in range(48):
            now = time.perf_counter_ns()
            if not self.dues or self.dues[0][0] > now:
                return
            due, number, stream = heapq.heappop(self.dues)
            steps = stream.plan
            if steps is None:
                continue
            stream.sent.append(time.perf_counter_ns())
            self.write(stream, stream.piece)
            stream.position += 1
            if stream.position > len(steps.steps):
                self.records.append({
                    "number": stream.number, "arrived": stream.arrived, "tokens": steps.tokens,
                    "first_ns": steps.first_ns, "steps": steps.steps, "sent": stream.sent,
                })  # fmt: skip
                stream.plan = None
            else:
                stream.piece = self.next_piece(stream, steps)
                heapq.heappush(self.dues, (due + STEP_NS, number, stream))

    def next_piece(self, stream: Stream, steps: Plan) -> bytes:
        added = 1 if stream.position == 0 else steps.steps[stream.position - 1]
        stream.count += added
        return self.piece(stream, added, stream.position == len(steps.steps))

    def piece(self, stream: Stream, added: int, last: bool) -> bytes:
        if stream.route == "/generate":
            text, finish = self.text[: stream.count * 4 - 1], b'{"type":"length"}' if last else b"null"
            event = (
                b'data: {"text":"%s","output_ids":[%s],"meta_info":{"id":"r%d","finish_reason":%s,'
                b'"prompt_tokens":8,"completion_tokens":%d,"cached_tokens":0,"spec_verify_ct":%d}}\n\n'
                % (text, b"7," * (added - 1) + b"7", stream.number, finish, stream.count, stream.position)
            )
        else:
            event = self.openai(stream, added, last)
        if not last:
            return b"%x\r\n%s\r\n" % (len(event), event)
        return b"%x\r\n%s\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n" % (len(event), event)

    def openai(self, stream: Stream, added: int, last: bool) -> bytes:
        text, finish = self.text[: added * 4], b'"length"' if last else b"null"
        kind, part = b"chat.completion.chunk", b'"delta":{"role":"assistant","content":"%s"}' % text
        if stream.route == "/v1/completions":
            kind, part = b"text_completion", b'"text":"%s"' % text
        usage = b'{"prompt_tokens":8,"completion_tokens":%d,"total_tokens":%d}' % (
            stream.count,
            8 + stream.count,
        )
        shared = b'data: {"id":"r%d","object":"%s","created":1,"model":"truth","choices":[' % (
            stream.number,
            kind,
        )
        event = shared + b'{"index":0,%s,"finish_reason":%s}],"usage":%s}\n\n' % (part, finish, usage)
        return event + shared + b'],"usage":%s}\n\n' % usage if last else event

    def write(self, stream: Stream, data: bytes) -> None:
        data = stream.unsent + data
        try:
            sent = stream.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close(stream)
            return
        waiting = bool(stream.unsent)
        stream.unsent = data[sent:]
        if bool(stream.unsent) != waiting:
            wanted = select.EPOLLIN | (select.EPOLLOUT if stream.unsent else 0)
            self.poll.modify(stream.sock.fileno(), wanted)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=30900)
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    Server(chosen.host, chosen.port, chosen.seed).serve()
