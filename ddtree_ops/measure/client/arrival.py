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
STEP_NS = 1_000_000  # by more than this the wall clock was set, or its reader was interrupted
READINGS = 5


def ask(sock: socket.socket) -> None:
    """Has the kernel stamp what arrives, where it can (socket(7), SO_TIMESTAMP).

    It begins a moment after the first socket of a machine asks, and until then stamps what is read.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


class Arrivals:
    """The arrival times of one batch of ready sockets after the other, in perf_counter's nanoseconds.

    The kernel stamps in wall time, whose lead over perf_counter changes only when the clock is set:
    what was stamped before does not fit then, and the batch bears the time of its report.
    """

    def __init__(self) -> None:
        self.now = time.perf_counter_ns()
        self._lead = wall_lead()
        self._fits = True

    def begin(self) -> None:
        """A batch was reported: whatever the kernel does not stamp had arrived by now."""
        self.now = time.perf_counter_ns()
        self._fits = True
        if abs(time.time_ns() - self.now - self._lead) > STEP_NS:
            lead = wall_lead()
            self._fits = abs(lead - self._lead) <= STEP_NS
            self._lead = lead

    def receive(self, sock: socket.socket, size: int) -> tuple[bytes, int]:
        """What `sock` holds, to `size` bytes, and when the last of it came; raises as recv does."""
        if not ANCILLARY:
            return sock.recv(size), self.now
        data, ancillary, _, _ = sock.recvmsg(size, ANCILLARY)
        for level, kind, value in ancillary:
            if self._fits and (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                seconds, nanoseconds = TIMESPEC.unpack(value)
                return data, seconds * 1_000_000_000 + nanoseconds - self._lead
        return data, self.now


def wall_lead() -> int:
    """The wall clock minus perf_counter, ns, from the reading that took least: others were interrupted."""
    readings = []
    for _ in range(READINGS):
        before = time.perf_counter_ns()
        wall = time.time_ns()
        after = time.perf_counter_ns()
        readings.append((after - before, wall - (before + after) // 2))
    return min(readings)[1]
