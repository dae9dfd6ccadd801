"""The systemd lab: a thin hold on hosts.sh, which boots real hosts in namespaces of its own."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ddtree_ops.lab.hosts import Kind, Lab, LabHost
from ddtree_ops.lab.image import base_prefix, node_image
from ddtree_ops.lab.node import write_inventory, write_unit
from ddtree_ops.model.errors import Failed, Refused

_SCRIPT = ("bash", str(Path(__file__).with_name("hosts.sh")))
_COMMANDS = ("systemd-nspawn", "sshd", "ip", "unshare", "nsenter", "ssh-keygen", "sudo", "dbus-daemon")
_PACKAGES = (
    *("systemd", "systemd-sysv", "systemd-container", "libpam-systemd", "dbus"),
    *("openssh-server", "openssh-client", "iproute2", "util-linux", "sudo", "python3"),
)
_CLONE_NEWNET = 0x40000000
_ENGINE_PORT = 30001
_SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def why_not() -> str:
    """Why this machine cannot boot systemd hosts; "" when it can, perhaps after installing packages."""
    if not sys.platform.startswith("linux"):
        return "systemd hosts need Linux"
    if os.geteuid() != 0:
        return "systemd hosts need root"
    if _missing() and not shutil.which("apt-get"):
        return f"systemd hosts need {', '.join(_missing())}, and there is no apt-get to install them with"
    probe = ("unshare", "--mount", "--net", "--propagation", "private", "true")
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        return "systemd hosts need the right to make mount and network namespaces"
    return ""


def install_packages() -> None:
    """Installs the Debian packages that are missing; starts none of their services."""
    if not _missing():
        return
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for words in (("update",), ("install", "-y", "--no-install-recommends", *_PACKAGES)):
        done = subprocess.run(
            ("apt-get", "-qq", *words), env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise Failed("lab", f"apt-get {words[0]}: {last}", hint=f"apt-get install {' '.join(_PACKAGES)}")


class SystemdLab(Lab):
    """Hosts h1, h2, … at addresses that exist in the lab's network namespace alone."""

    kind = Kind.SYSTEMD

    def __init__(self, state: Path, cache: Path) -> None:
        self.state, self._cache = state.absolute(), cache

    def up(self, count: int = 1) -> tuple[LabHost, ...]:
        known = self.status()
        if len(known) >= count and all(host.running for host in known):
            return known
        reason = why_not()
        if reason:
            raise Refused("lab", reason, hint="ddtree-ops lab up --kind embedded")
        install_packages()
        self.down()
        hosts = tuple(self._host(index) for index in range(1, count + 1))
        self._seed(hosts[0])
        base = base_prefix()
        bind = "" if base.is_relative_to("/usr") else str(base)
        settings = {"LAB_HOSTS": str(count), "LAB_IMAGE": str(node_image(self._cache)), "LAB_BIND": bind}
        self._call("up", **settings)
        write_inventory(self.inventory, hosts)
        return hosts

    def down(self) -> None:
        if self.state.exists():
            self._call("down")

    def status(self) -> tuple[LabHost, ...]:
        hosts = self.state / "hosts"
        count = len(hosts.read_text().splitlines()) if hosts.exists() and self.inventory.exists() else 0
        found = (self._host(index) for index in range(1, count + 1))
        return tuple(replace(host, running=self._running(host.name)) for host in found)

    def reboot(self, name: str) -> None:
        self._call("reset", name)
        deadline = time.monotonic() + 30
        while (self.state / f"{name}.reset").exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    def cut_link(self, name: str) -> None:
        self._call("link", name, "down")

    def restore_link(self, name: str) -> None:
        self._call("link", name, "up")

    def run(
        self, name: str, argv: tuple[str, ...], *, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            (*_SCRIPT, "in", name, *argv),
            input=stdin,
            capture_output=True,
            check=False,
            env=self._environment(),
        )

    def files(self, name: str) -> Path:
        """Through the supervisor's mount namespace; root alone may look."""
        supervisor = (self.state / "pid").read_text().strip()
        return Path(f"/proc/{supervisor}/root{self.state}/w/{name}/root")

    def operator(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        return ("env", f"LAB_STATE={self.state}", *_SCRIPT, "exec", *argv)

    @contextmanager
    def entered(self) -> Iterator[None]:
        supervisor = (self.state / "pid").read_text().strip()
        with open("/proc/thread-self/ns/net") as before, open(f"/proc/{supervisor}/ns/net") as lab:  # noqa: PTH123
            _join_network(lab.fileno())
            try:
                yield
            finally:
                _join_network(before.fileno())

    def _host(self, index: int) -> LabHost:
        return LabHost(
            name=f"h{index}",
            kind=self.kind,
            address=f"10.77.0.{10 + index}",
            port=22,
            user="root",
            identity_file=self.state / "key",
            known_hosts=self.state / "known_hosts",
            root="",
            engine_port=_ENGINE_PORT,
        )

    def _seed(self, host: LabHost) -> None:
        """What the script copies into every host before its first boot."""
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.state / ".lab").touch()
        write_unit(host, self.state / "seed")

    def _running(self, name: str) -> bool:
        pid = self.state / f"{name}.nspawn"
        return pid.exists() and Path(f"/proc/{pid.read_text().strip()}").exists()

    def _environment(self, **settings: str) -> dict[str, str]:
        return (
            os.environ | {"LAB_STATE": str(self.state), "PATH": f"{os.environ['PATH']}:{_SEARCH}"} | settings
        )

    def _call(self, *words: str, **settings: str) -> None:
        done = subprocess.run(
            (*_SCRIPT, *words),
            capture_output=True,
            text=True,
            check=False,
            env=self._environment(**settings),
        )
        if done.returncode:
            raise Failed("lab", f"{words[0]}: {done.stderr.strip()}", hint="ddtree-ops lab down")


def _missing() -> list[str]:
    path = f"{os.environ.get('PATH', '')}:{_SEARCH}"
    return [name for name in _COMMANDS if not shutil.which(name, path=path)]


def _join_network(descriptor: int) -> None:
    """setns(2) for the calling thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
