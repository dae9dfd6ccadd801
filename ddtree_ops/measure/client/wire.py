"""HTTP/1.1 as a load client needs it: requests as ready bytes, responses cut up only afterwards."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

HEAD_END = b"\r\n\r\n"
CHUNKED_END = b"\r\n0\r\n\r\n"
EVENT_END = re.compile(rb"\r?\n\r?\n")


class Framing(StrEnum):
    """How a response says where it ends."""

    CHUNKED = "chunked"
    LENGTH = "length"
    CLOSE = "close"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Status line and the few headers that matter here; `size` is its length in bytes."""

    status: int
    framing: Framing
    length: int
    keep_alive: bool
    retry_after_s: float | None
    size: int


def request(method: str, host: str, path: str, body: bytes = b"", token: str = "") -> bytes:
    """The bytes of one request; `token` becomes the bearer's and is kept nowhere else."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Accept: */*", "Connection: keep-alive"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode("latin-1", "replace") + HEAD_END + body


def read_head(data: bytes) -> Head | None:
    """The response's head, or None while it is incomplete; raises ValueError on what is not HTTP."""
    end = data.find(HEAD_END)
    if end < 0:
        if len(data) > 65536 or not b"HTTP/".startswith(data[:5]):
            raise ValueError(f"got {data[:40]!r}, expected an HTTP response")
        return None
    status_line, *lines = data[:end].decode("latin-1").split("\r\n")
    match = re.match(r"HTTP/1\.[01] (\d{3})", status_line)
    if match is None:
        raise ValueError(f"got {status_line[:40]!r}, expected an HTTP status line")
    headers = {name.strip().lower(): value.strip() for name, _, value in (s.partition(":") for s in lines)}
    framing, length = _framing(headers)
    return Head(
        status=int(match[1]),
        framing=framing,
        length=length,
        keep_alive=headers.get("connection", "").lower() != "close" and framing is not Framing.CLOSE,
        retry_after_s=_seconds(headers.get("retry-after")),
        size=end + len(HEAD_END),
    )


def _framing(headers: dict[str, str]) -> tuple[Framing, int]:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return Framing.CHUNKED, 0
    length = headers.get("content-length", "")
    return (Framing.LENGTH, int(length)) if length.isdigit() else (Framing.CLOSE, 0)


def _seconds(value: str | None) -> float | None:
    return float(value) if value and re.fullmatch(r"\d+(\.\d+)?", value) else None


@dataclass(frozen=True, slots=True)
class Body:
    """A response body with the arrival time of each of its bytes still known."""

    data: bytes
    complete: bool
    offsets: tuple[int, ...]  # end offset in `data` of each piece that arrived
    stamps: tuple[int, ...]  # ns, when it arrived

    def arrival(self, end: int) -> int:
        """When the byte before offset `end` arrived, in ns."""
        return self.stamps[min(bisect.bisect_left(self.offsets, end), len(self.stamps) - 1)]

    def events(self) -> Iterator[tuple[int, bytes]]:
        """Each server-sent event's arrival time and data, comments and blank ones left out."""
        start = 0
        for blank in EVENT_END.finditer(self.data):
            event = _event_data(self.data[start : blank.start()])
            if event:
                yield self.arrival(blank.end()), event
            start = blank.end()


def _event_data(block: bytes) -> bytes:
    if block.startswith(b"data: ") and b"\n" not in block:  # nearly always
        return block[6:]
    lines = (line.rstrip(b"\r") for line in block.split(b"\n") if line.startswith(b"data:"))
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)


def read_body(head: Head, pieces: Sequence[bytes], stamps: Sequence[int]) -> Body:
    """Undoes the response's framing; `pieces` and `stamps` are what arrived and when, head included."""
    raw, ends, total = b"".join(pieces), [], 0
    for piece in pieces:
        total += len(piece)
        ends.append(total)
    if head.framing is not Framing.CHUNKED:
        data = raw[head.size :]
        complete = head.framing is Framing.CLOSE or len(data) >= head.length
        offsets = tuple(max(0, end - head.size) for end in ends)
        return Body(data, complete, offsets, tuple(stamps))
    return _dechunk(raw, head.size, ends, stamps)


def _dechunk(raw: bytes, position: int, ends: Sequence[int], stamps: Sequence[int]) -> Body:
    parts: list[bytes] = []
    offsets: list[int] = []
    arrived: list[int] = []
    total, complete = 0, False
    while (line_end := raw.find(b"\r\n", position)) >= 0:
        size = _chunk_size(raw[position:line_end])
        if size <= 0:
            complete = size == 0
            break
        start, position = line_end + 2, line_end + 4 + size
        parts.append(raw[start : start + size])
        total += len(parts[-1])
        offsets.append(total)
        arrived.append(stamps[min(bisect.bisect_left(ends, start + size), len(stamps) - 1)])
    return Body(b"".join(parts), complete, tuple(offsets), tuple(arrived))


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.split(b";")[0], 16)
    except ValueError:
        return -1
