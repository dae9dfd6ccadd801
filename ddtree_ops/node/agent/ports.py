"""Who listens where, from /proc."""

from __future__ import annotations

import os
import socket

from .base import Json
from .files import read_text

LISTEN = "0A"


def listeners_of(port: int | None = None, owners: dict[int, str] | None = None) -> list[Json]:
    """Listening TCP sockets with their process and unit, as far as this user may see them."""
    sockets = {}
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for address, number, inode in parse_listeners(read_text(f"/proc/net/{table}"), family):
            if port is None or number == port:
                sockets[inode] = (address, number)
    pids = _holders(set(sockets))
    found = []
    for inode, (address, number) in sockets.items():
        pid = pids.get(inode)
        found.append(
            {
                "port": number,
                "address": address,
                "pid": pid,
                "process": read_text(f"/proc/{pid}/comm").strip() or None if pid else None,
                "unit": unit_of_process(pid, owners or {}) if pid else None,
            }
        )
    return sorted(found, key=lambda listener: (listener["port"], listener["address"]))


def parse_listeners(table: str, family: int) -> list[tuple[str, int, str]]:
    """(address, port, inode) of the listening rows of /proc/net/tcp or tcp6."""
    rows = []
    for line in table.splitlines()[1:]:
        words = line.split()
        if len(words) > 9 and words[3] == LISTEN:
            address, _, port = words[1].partition(":")
            rows.append((_address(address, family), int(port, 16), words[9]))
    return rows


def _address(digits: str, family: int) -> str:
    """The kernel prints 32-bit words of the address in the machine's byte order."""
    words = [int(digits[i : i + 8], 16) for i in range(0, len(digits), 8)]
    return socket.inet_ntop(
        socket.AddressFamily(family), b"".join(word.to_bytes(4, "little") for word in words)
    )


def _holders(inodes: set[str]) -> dict[str, int]:
    """socket inode → pid; stops as soon as all are known."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[str, int] = {}
    for name in os.listdir("/proc") if wanted and os.path.isdir("/proc") else []:
        if not name.isdigit():
            continue
        try:
            handles = os.listdir(f"/proc/{name}/fd")
        except OSError:
            continue
        for handle in handles:
            try:
                inode = wanted.get(os.readlink(f"/proc/{name}/fd/{handle}"))
            except OSError:
                continue
            if inode is not None:
                found.setdefault(inode, int(name))
        if len(found) == len(wanted):
            break
    return found


def unit_of_process(pid: int, owners: dict[int, str]) -> str | None:
    """The unit whose main process is an ancestor of pid, else the one that its cgroup names."""
    ancestor = pid
    while ancestor > 1:
        if ancestor in owners:
            return owners[ancestor]
        ancestor = _parent(ancestor)
    for line in read_text(f"/proc/{pid}/cgroup").splitlines():
        units = [part for part in line.split("/") if part.endswith(".service")]
        if units:
            return units[-1]
    return None


def _parent(pid: int) -> int:
    """/proc/PID/stat: the command, in brackets, may hold anything; state and parent follow it."""
    fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0
