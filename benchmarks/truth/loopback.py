"""One process that sends itself the schedule's pieces over loopback: the least that this machine does to it.

Prints {"gaps": between arrivals by the kernel's stamps, "late": of the sends}, in nanoseconds. There is no
server and no client in it, and neither core has other work: what is off here is the machine's.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from itertools import pairwise

from server import STEP_NS

from ddtree_ops.measure.client.arrival import ANCILLARY, SO_TIMESTAMPNS, TIMESPEC

PIECE = b"x" * 1500


def connected() -> tuple[socket.socket, socket.socket]:
    """A sender and a receiver whose data the kernel stamps."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return sender, receiver


def stamp_of(receiver: socket.socket) -> int:
    """Takes what has come; when it came, on the wall clock."""
    _, extra, _, _ = receiver.recvmsg(1 << 16, ANCILLARY)
    (data,) = (data for level, kind, data in extra if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS))
    seconds, rest = TIMESPEC.unpack(data)
    return seconds * 1_000_000_000 + rest


def measure(streams: int, seconds: float) -> dict[str, list[int]]:
    """As many streams as asked for, their steps spread evenly over the step's time."""
    pairs = [connected() for _ in range(streams)]
    stamps: list[list[int]] = [[] for _ in pairs]
    late = []
    began = time.perf_counter_ns() + STEP_NS
    for number in range(int(seconds * 1e9 / STEP_NS) * streams):
        due = began + number * STEP_NS // streams
        while (now := time.perf_counter_ns()) < due:
            pass
        late.append(now - due)
        sender, receiver = pairs[number % streams]
        sender.send(PIECE)
        stamps[number % streams].append(stamp_of(receiver))
    for pair in pairs:
        for sock in pair:
            sock.close()
    return {"gaps": [after - before for one in stamps for before, after in pairwise(one)], "late": late}


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), float(sys.argv[2]))))
