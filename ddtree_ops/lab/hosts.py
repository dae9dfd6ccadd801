"""The lab as the command line and the tests see it, whatever its kind."""

from __future__ import annotations

import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ddtree_ops.model.errors import UsageError

SERVICE = "sglang-ddtree"


class Kind(StrEnum):
    """What plays the node."""

    EMBEDDED = "embedded"
    SYSTEMD = "systemd"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabHost:
    """One node of the lab: how to reach it, and where its things lie as its own processes see them."""

    name: str
    kind: Kind
    address: str
    port: int
    user: str
    identity_file: Path
    known_hosts: Path
    root: str  # prefix of the paths below: "" on systemd hosts, a private directory on embedded ones
    engine_port: int
    running: bool = True

    @property
    def venv(self) -> str:
        return f"{self.root}/opt/sglang"

    @property
    def target(self) -> str:
        return f"{self.root}/opt/models/target"

    @property
    def draft(self) -> str:
        return f"{self.root}/opt/models/draft"

    @property
    def unit_dir(self) -> str:
        return f"{self.root}/etc/systemd/system"

    @property
    def state_dir(self) -> str:
        return f"{self.root}/var/lib/ddtree-ops"


class Lab(ABC):
    """Nodes to work on. `up` may be repeated; `down` ends every process and removes every file of theirs."""

    kind: Kind
    state: Path

    @property
    def inventory(self) -> Path:
        """The inventory file that `up` writes; relative to nothing, readable by its owner alone."""
        return self.state / "inventory.yaml"

    @abstractmethod
    def up(self, count: int = 1) -> tuple[LabHost, ...]:
        """Boots `count` nodes, or brings back those that are there; returns them once SSH answers."""

    @abstractmethod
    def down(self) -> None:
        """Ends it all, also after a kill -9 of anything."""

    @abstractmethod
    def status(self) -> tuple[LabHost, ...]:
        """The nodes as they are now; empty when the lab is not up."""

    @abstractmethod
    def reboot(self, name: str) -> None:
        """Reboots a node without warning to its processes; returns when it has gone down."""

    @abstractmethod
    def cut_link(self, name: str) -> None:
        """Stops every packet to and from the node, in silence."""

    @abstractmethod
    def restore_link(self, name: str) -> None:
        """Lets packets pass again."""

    @abstractmethod
    def run(
        self, name: str, argv: tuple[str, ...], *, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """Runs a command on the node past the SSH link, so also while it is cut."""

    @abstractmethod
    def files(self, name: str) -> Path:
        """The node's root directory as this machine's processes can open it."""

    @abstractmethod
    def operator(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """The argv under which a command reaches the nodes from this machine."""

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Lets this thread, and threads started by it, reach the nodes."""
        yield

    def kill(self, name: str, pid: int, number: int = signal.SIGKILL) -> None:
        """Signals one process of the node by its id there."""
        self.run(name, ("/bin/sh", "-c", f"kill -{int(number)} {pid}"))

    def host(self, name: str) -> LabHost:
        """The node of that name."""
        hosts = {host.name: host for host in self.status()}
        if name not in hosts:
            known = ", ".join(hosts) or "none: the lab is not up"
            raise UsageError("lab", f"got node {name!r}, expected one of {known}", hint="ddtree-ops lab up")
        return hosts[name]


def state_directory(kind: Kind) -> Path:
    """Where a lab of that kind keeps its state: DDTREE_OPS_LAB_STATE, else below XDG_STATE_HOME."""
    chosen = os.environ.get("DDTREE_OPS_LAB_STATE")
    if chosen:
        return Path(chosen).absolute() / kind
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(home).absolute() / "ddtree-ops/lab" / kind
