"""The embedded lab: nodes in a private directory of this user, no root needed."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import asyncssh

from ddtree_ops.lab.embedded.process import ROOT_VARIABLE, base_environment, kill_marked
from ddtree_ops.lab.embedded.server import install_stand_ins
from ddtree_ops.lab.hosts import Kind, Lab, LabHost
from ddtree_ops.lab.image import copy_image, node_image
from ddtree_ops.lab.node import write_inventory, write_unit
from ddtree_ops.lab.ports import free_port
from ddtree_ops.model.errors import Failed

_START_TIMEOUT_S = 30.0
_FOLDERS = ("etc/systemd/system", "root", "tmp", "opt", "var/lib")


class EmbeddedLab(Lab):
    """Each node is one background process with an SSH port of its own on loopback."""

    kind = Kind.EMBEDDED

    def __init__(self, state: Path, cache: Path) -> None:
        self.state, self._cache = state.absolute(), cache

    def up(self, count: int = 1) -> tuple[LabHost, ...]:
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.state.chmod(0o700)
        with (self.state / "up.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two operators may type `--host lab` at once
            self._up(count)
        return self.status()

    def _up(self, count: int) -> None:
        self._write_client_key()
        known = self._read()
        fresh = tuple(self._new_host(index) for index in range(len(known), count))
        for host in fresh:
            self._install(host)
        self._write(known + fresh)
        sleeping = [host for host in known + fresh if not self._alive(host.name)]
        for host in sleeping:
            self._launch(host)
        for host in sleeping:
            self._wait_ready(host)

    def down(self) -> None:
        for host in self._read():
            self._end(host)
        shutil.rmtree(self.state, ignore_errors=True)

    def status(self) -> tuple[LabHost, ...]:
        return tuple(replace(host, running=self._alive(host.name)) for host in self._read())

    def reboot(self, name: str) -> None:
        self._ask(name, "reboot")

    def cut_link(self, name: str) -> None:
        self._ask(name, "cut")

    def restore_link(self, name: str) -> None:
        self._ask(name, "restore")

    def run(
        self, name: str, argv: tuple[str, ...], *, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        root = self.files(name)
        environment = base_environment(root) | {"HOME": f"{root}/root"}
        return subprocess.run(
            argv, input=stdin, capture_output=True, check=False, env=environment, cwd=root / "root"
        )

    def files(self, name: str) -> Path:
        return self._directory(name) / "root"

    def operator(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        return argv

    def _directory(self, name: str) -> Path:
        return self.state / "nodes" / name

    def _new_host(self, index: int) -> LabHost:
        name = "lab" if index == 0 else f"lab-{index + 1}"
        return self._host(name, port=free_port(), engine_port=free_port())

    def _host(self, name: str, *, port: int, engine_port: int) -> LabHost:
        return LabHost(
            name=name,
            kind=self.kind,
            address="127.0.0.1",
            port=port,
            user=getpass.getuser(),
            identity_file=self.state / "key",
            known_hosts=self.state / "known_hosts",
            root=str(self.files(name)),
            engine_port=engine_port,
        )

    def _install(self, host: LabHost) -> None:
        """Lays out a node's disk beside its place and moves it there, so that half a node is never seen."""
        place = self._directory(host.name)
        fresh = place.with_name(f".{host.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        root = fresh / "root"
        for folder in _FOLDERS:
            (root / folder).mkdir(parents=True, exist_ok=True)
        copy_image(node_image(self._cache), root)
        install_stand_ins(root)
        write_unit(host, root)
        key = asyncssh.generate_private_key("ssh-ed25519", comment=host.name)
        key.write_private_key(str(fresh / "host_key"))
        (fresh / "host_key").chmod(0o600)
        key.write_public_key(str(fresh / "host_key.pub"))
        shutil.copy(self.state / "key.pub", fresh / "authorized_keys")
        fresh.rename(place)

    def _write_client_key(self) -> None:
        if not (self.state / "key").exists():
            key = asyncssh.generate_private_key("ssh-ed25519", comment="ddtree-ops lab")
            key.write_public_key(str(self.state / "key.pub"))
            key.write_private_key(str(self.state / "key"))
            (self.state / "key").chmod(0o600)

    def _launch(self, host: LabHost) -> None:
        directory = self._directory(host.name)
        kill_marked(f"{ROOT_VARIABLE}={host.root}")  # what a killed server left running
        (directory / "ready").unlink(missing_ok=True)
        with (directory / "server.log").open("ab") as log:
            server = (sys.executable, "-m", "ddtree_ops.lab.embedded.server", str(directory), str(host.port))
            subprocess.run(
                ("/bin/sh", "-c", '"$@" &', "sh", *server),  # the shell leaves at once: no child of ours
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                check=True,
                cwd=Path(__file__).parents[3],
                env={name: value for name, value in os.environ.items() if name != ROOT_VARIABLE},
            )

    def _wait_ready(self, host: LabHost) -> None:
        directory = self._directory(host.name)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not (directory / "ready").exists():
            if time.monotonic() > deadline:
                log = (directory / "server.log").read_text(errors="replace").strip().splitlines()
                raise Failed(
                    "lab",
                    f"did not start: {(log or ['no message'])[-1]}",
                    node=host.name,
                    hint="ddtree-ops lab down",
                )
            time.sleep(0.02)

    def _end(self, host: LabHost) -> None:
        with suppress(Failed):  # it may be dying already
            if self._alive(host.name):
                self._ask(host.name, "down")
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self._alive(host.name) and time.monotonic() < deadline:
            time.sleep(0.02)
        kill_marked(f"{ROOT_VARIABLE}={host.root}")

    def _alive(self, name: str) -> bool:
        """Whether the node's server holds its lock; the kernel answers, so a stale file cannot lie."""
        lock = self._directory(name) / "lock"
        if not lock.exists():
            return False
        with lock.open("r+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
        return False

    def _ask(self, name: str, word: str) -> None:
        client = Path(__file__).with_name("standin.py")
        argv = (sys.executable, "-I", "-S", str(client), "lab-admin", word)
        environment = {
            "DDTREE_OPS_LAB_ROOT": str(self.files(name))
        }  # unmarked: outlives the node's processes
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise Failed("lab", f"{word}: {done.stderr.strip()}", node=name, hint="ddtree-ops lab status")

    def _read(self) -> tuple[LabHost, ...]:
        path = self.state / "nodes.json"
        stored = json.loads(path.read_text()) if path.exists() else {}
        return tuple(self._host(name, **ports) for name, ports in stored.items())

    def _write(self, hosts: tuple[LabHost, ...]) -> None:
        keys = [(self._directory(host.name) / "host_key.pub").read_text().split()[:2] for host in hosts]
        lines = [
            f"[{host.address}]:{host.port} {' '.join(key)}\n" for host, key in zip(hosts, keys, strict=True)
        ]
        ports = {host.name: {"port": host.port, "engine_port": host.engine_port} for host in hosts}
        (self.state / "known_hosts").write_text("".join(lines))
        (self.state / "nodes.json").write_text(json.dumps(ports, indent=1))
        write_inventory(self.inventory, hosts)
