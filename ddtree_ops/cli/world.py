"""The world that commands act in: shipped files, inventory, connections, the lab."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ddtree_ops.config.inventory import Inventory, parse_inventory
from ddtree_ops.config.playbook import parse_playbook
from ddtree_ops.lab.hosts import Kind
from ddtree_ops.lab.kinds import open_lab
from ddtree_ops.model.errors import UsageError
from ddtree_ops.model.host import Host
from ddtree_ops.model.plan import Playbook
from ddtree_ops.node.ssh import SshLink, SshTarget
from ddtree_ops.plan.steps import NAMES, check_order
from ddtree_ops.run.clock import SystemClock
from ddtree_ops.run.context import World
from ddtree_ops.run.interrupts import Interrupts
from ddtree_ops.run.journal import LocalJournal
from ddtree_ops.run.screen import Screen

PACKAGE = Path(__file__).resolve().parent.parent
INVENTORY = "DDTREE_OPS_INVENTORY"
LAB = "lab"
_entered = ExitStack()  # namespaces of labs, left when the process ends


def shipped(name: str) -> Path:
    """The folder of templates, playbooks or patches: beside the package, or inside it in a wheel."""
    inside = PACKAGE / "_data" / name
    return inside if inside.is_dir() else PACKAGE.parent / name


def state_folder() -> Path:
    """Where the operator's own journals and results go."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "ddtree-ops"


def operator() -> str:
    return f"{os.environ.get('SUDO_USER') or getpass.getuser()}@{socket.gethostname()}"


def make_world(screen: Screen) -> World:
    clock = SystemClock()
    return World(
        clock=clock,
        screen=screen,
        templates=shipped("templates"),
        playbooks=shipped("playbooks"),
        patches=shipped("patches"),
        operator=operator(),
        journal=LocalJournal(state_folder() / "journal", clock),
        interrupts=Interrupts(lambda: screen.warn("ddtree-ops", "the node is being put back; please wait")),
        connect=connect,
    )


def connect(host: Host) -> AbstractContextManager[SshLink]:
    """One verified SSH connection to a host of the inventory."""
    return SshLink(
        SshTarget(
            name=host.name,
            address=host.address or host.name,
            port=host.port,
            user=host.user,
            identity_file=_home(host.identity_file),
            jump=host.jump,
            known_hosts=(known,) if (known := _home(host.known_hosts)) else (),
            sudo=host.sudo,
            connect_timeout_s=host.connect_timeout_s,
            dead_after_s=host.dead_after_s,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One host with the inventory that it came from, whose profiles it may name."""

    host: Host
    inventory: Inventory


def find_targets(names: list[str], inventory_file: Path | None) -> tuple[Target, ...]:
    """The hosts behind `--host`, each once; `lab` starts the embedded node when it is not up."""
    inventory = load_inventory(inventory_file)
    targets: dict[str, Target] = {}
    for name in names:
        known = name in inventory.hosts or name in inventory.groups
        source = inventory if known else _lab_inventory(name) or inventory
        for host in source.resolve(name):
            targets.setdefault(host.name, Target(host=_named_jump(host, source), inventory=source))
    if not targets:
        raise UsageError("--host", "got none, expected at least one", hint="--host lab works anywhere")
    return tuple(targets.values())


def load_inventory(file: Path | None) -> Inventory:
    """The inventory given, or that of the environment, this folder or ~/.config; else an empty one."""
    candidates = [Path("ddtree-ops.yaml"), Path.home() / ".config" / "ddtree-ops" / "inventory.yaml"]
    named = file or (Path(os.environ[INVENTORY]) if os.environ.get(INVENTORY) else None)
    path = named or next((candidate for candidate in candidates if candidate.is_file()), None)
    return Inventory() if path is None else parse_inventory(read(path, "inventory"), str(path))


def load_playbook(name: str) -> Playbook:
    """One of the shipped playbooks, or a file."""
    path = shipped("playbooks") / f"{name}.yaml"
    if not path.is_file() or name.endswith((".yaml", ".yml")):
        path = Path(name)
    playbook = parse_playbook(read(path, "playbook"), str(path), NAMES)
    check_order(playbook, str(path))
    return playbook


def read(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no UTF-8"
        raise UsageError(str(path), f"got {why}, expected a readable {what} file") from error


def _home(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser())


def _lab_inventory(name: str) -> Inventory | None:
    """The inventory of the lab that has a node or group of this name; None when none has.

    The name `lab` starts the embedded node. Nodes of a systemd lab live in a network namespace of
    their own, which this process enters for the rest of its life.
    """
    if name == LAB:
        open_lab(Kind.EMBEDDED).up()
    for kind in Kind:
        lab = open_lab(kind)
        if not lab.inventory.is_file():
            continue
        inventory = parse_inventory(read(lab.inventory, "inventory"), str(lab.inventory))
        if name in inventory.hosts or name in inventory.groups:
            _entered.enter_context(lab.entered())
            return inventory
    return None


def _named_jump(host: Host, inventory: Inventory) -> Host:
    """The host with a jump that names another host of the inventory spelt out."""
    jump = inventory.hosts.get(host.jump or "")
    if jump is None:
        return host
    login = f"{jump.user}@" if jump.user else ""
    port = f":{jump.port}" if jump.port else ""
    return replace(host, jump=f"{login}{jump.address or jump.name}{port}")
