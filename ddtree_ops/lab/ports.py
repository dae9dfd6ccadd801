"""Ports for servers on loopback that come and go, such as an engine that is restarted."""

from __future__ import annotations

import random
import socket

SERVERS = range(20000, 32000)  # below Linux' ephemeral ports (32768 and up), which any client may hold


def free_port() -> int:
    """A port that nothing listens on now and that no outgoing connection will be given meanwhile."""
    for port in random.sample(SERVERS, k=len(SERVERS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port from {SERVERS.start} to {SERVERS.stop - 1}")
