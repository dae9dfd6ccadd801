"""SSH to one node: the only module that speaks to fabric and paramiko."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType


@dataclass(frozen=True, slots=True, kw_only=True)
class SshTarget:
    """Where a node is and how to log in; None leaves the matter to ssh_config."""

    name: str  # how the node is called in messages
    address: str  # host name, address or ssh_config alias
    port: int | None = None
    user: str | None = None
    identity_file: str | None = None
    jump: str | None = None  # "user@host:port[,…]" in the order of travel; None: ssh_config's ProxyJump
    known_hosts: tuple[str, ...] = ()  # (): ssh_config's UserKnownHostsFile, else OpenSSH's defaults
    ssh_config: str | None = None  # path; None: ~/.ssh/config and /etc/ssh/ssh_config
    sudo: bool = False  # run everything through `sudo -n`
    connect_timeout_s: float = 10.0
    dead_after_s: float = 20.0  # a link that stays silent for so long is dead


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A finished command."""

    code: int  # 128 + n where signal n ended it
    stdout: bytes
    stderr: bytes


class SshLink:
    """One verified SSH connection; `with SshLink(target) as link:` opens and closes it."""

    def __init__(self, target: SshTarget) -> None:
        self.target = target
        self.round_trips = 0  # one per command run

    def __enter__(self) -> SshLink:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError

    def run(self, argv: tuple[str, ...], *, stdin: bytes = b"", timeout_s: float) -> Ran:
        """Runs argv to its end, through sudo where the target says so; Unreachable when it can't."""
        raise NotImplementedError

    def forward(self, port: int, host: str = "127.0.0.1") -> AbstractContextManager[int]:
        """A local port that leads to host:port as seen from the node, while the context lasts."""
        raise NotImplementedError
