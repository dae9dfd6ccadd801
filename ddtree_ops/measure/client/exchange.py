"""One request on the wire: what was sent, and every piece that came back with its arrival time."""

from __future__ import annotations

from ddtree_ops.measure.client.sample import Outcome
from ddtree_ops.measure.client.wire import CHUNKED_END, Framing, Head, read_head


class Exchange:
    """Mutable on purpose: the reactor touches it once for each piece that arrives."""

    __slots__ = (
        "body_size",
        "detail",
        "due",
        "ended",
        "head",
        "index",
        "outcome",
        "pieces",
        "prompt",
        "sent",
        "shown",
        "stamps",
        "tail",
        "warmup",
        "wire",
    )

    def __init__(self, index: int, prompt: str, wire: bytes, *, due: int, warmup: bool = False) -> None:
        self.index, self.prompt, self.wire, self.due, self.warmup = index, prompt, wire, due, warmup
        self.sent = self.ended = 0
        self.pieces: list[bytes] = []
        self.stamps: list[int] = []
        self.head: Head | None = None
        self.body_size = 0
        self.tail = b""
        self.outcome: Outcome | None = None
        self.detail = ""
        self.shown = 0  # tokens already counted by a live view

    def take(self, piece: bytes, stamp: int) -> bool:
        """Keeps a piece; True when the response is complete. Raises ValueError on what is not HTTP."""
        self.pieces.append(piece)
        self.stamps.append(stamp)
        head = self.head
        if head is None:
            head = self.head = read_head(b"".join(self.pieces))
            if head is None:
                return False
            self.body_size = sum(map(len, self.pieces)) - head.size
        else:
            self.body_size += len(piece)
        if head.framing is Framing.CHUNKED:
            end = piece if len(piece) >= len(CHUNKED_END) else self.tail + piece
            self.tail = end[-len(CHUNKED_END) :]
            return end.endswith(CHUNKED_END)
        return head.framing is Framing.LENGTH and self.body_size >= head.length

    def finish(self, outcome: Outcome, now: int, detail: str = "") -> None:
        self.outcome, self.ended, self.detail, self.wire = outcome, now, detail, b""

    def held(self) -> int:
        """Bytes of memory that its pieces take, about."""
        return self.body_size + 90 * len(self.pieces)
