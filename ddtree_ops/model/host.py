"""A node as the inventory names it: how to reach it, and what it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where to connect; what is None is left to ssh_config and its defaults."""

    name: str
    address: str | None = None  # None: `name` is an ssh_config alias or a host name
    port: int | None = None
    user: str | None = None
    identity_file: str | None = None
    known_hosts: str | None = None
    jump: str | None = None  # user@addr:port, an inventory name or an ssh_config alias
    sudo: bool = True  # use sudo when the login is not root
    service: str | None = None
    profile: str | None = None
    lease_s: float = 120.0  # how long the node waits for its operator before it reverts by itself
    connect_timeout_s: float = 10.0
    dead_after_s: float = 40.0  # a link that stays silent for so long is given up and made anew
