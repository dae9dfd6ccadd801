"""When bytes arrived by the kernel's own clock, so that a reader who comes late does not stamp late."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import time

SO_TIMESTAMPNS = 35  # Linux, asm-generic/socket.h; Python's socket does not name it
TIMESPEC = struct.Struct("@ll")  # of CLOCK_REALTIME: struct timespec, seconds and nanoseconds
ANCILLARY = socket.CMSG_SPACE(TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0
STEP_NS = 1_000_000  # the wall clock was set: what the kernel stamped before does not fit any more


def ask(sock: socket.socket) -> None:
    """Has the kernel stamp what arrives, where it can (socket(7), SO_TIMESTAMP)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


class Arrivals:
    """The arrival times of one batch of ready sockets after the other, in perf_counter's nanoseconds."""

    def __init__(self) -> None:
        self.now = time.perf_counter_ns()
        self._ahead = time.time_ns() - self.now  # the wall clock's lead
        self._steady = True

    def begin(self) -> None:
        """A batch was reported: whatever the kernel does not stamp had arrived by now."""
        self.now = time.perf_counter_ns()
        ahead = time.time_ns() - self.now
        self._steady = abs(ahead - self._ahead) < STEP_NS
        self._ahead = ahead

    def receive(self, sock: socket.socket, size: int) -> tuple[bytes, int]:
        """What `sock` holds, to `size` bytes, and when the last of it came; raises as recv does."""
        if not ANCILLARY:
            return sock.recv(size), self.now
        data, ancillary, _, _ = sock.recvmsg(size, ANCILLARY)
        for level, kind, value in ancillary:
            if self._steady and (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                seconds, nanoseconds = TIMESPEC.unpack(value)
                return data, seconds * 1_000_000_000 + nanoseconds - self._ahead
        return data, self.now
