"""A lab node before the tool ever touched it: a unit written by hand, and its inventory entry."""

from __future__ import annotations

import io
import os
from pathlib import Path

from ruamel.yaml import YAML

from ddtree_ops.lab.hosts import SERVICE, LabHost

PROFILE = "lab"
LAUNCHER = "reference_engine.launch_server"
BUDGET, TOPK = 16, 4  # what the lab's profile asks for; the hand-written unit runs 7 and 1


def hand_written_unit(host: LabHost) -> str:
    """The unit that an operator would have left behind: stock sources, budget 7, a flag of their own."""
    return f"""\
# Kept by hand since the node was set up.
[Unit]
Description=SGLang with DDTree
After=network.target

[Service]
Type=simple
WorkingDirectory={host.root}/opt
Environment=OMP_NUM_THREADS=1
Environment="OPENBLAS_NUM_THREADS=1"
ExecStart={host.venv}/bin/python -m {LAUNCHER} \\
  --model-path {host.target} \\
  --speculative-algorithm DFLASH \\
  --speculative-draft-model-path {host.draft} \\
  --speculative-ddtree-budget 7 \\
  --speculative-ddtree-topk-cap 1 \\
  --attention-backend triton \\
  --watchdog-timeout 600 \\
  --host 127.0.0.1 --port {host.engine_port}
Restart=on-failure
RestartSec=2
KillMode=mixed
TimeoutStopSec=20
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
"""


def write_unit(host: LabHost, root: Path) -> None:
    """Puts the hand-written unit into the node and enables it, unless the node has one already."""
    directory = root / "etc/systemd/system"
    wants = directory / "multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    unit = directory / f"{SERVICE}.service"
    if not unit.exists():
        unit.write_text(hand_written_unit(host))
        (wants / unit.name).symlink_to(f"{host.unit_dir}/{unit.name}")


def write_inventory(path: Path, hosts: tuple[LabHost, ...]) -> None:
    """Writes the inventory; one profile where all nodes have the same paths and port, else one a node."""
    shared = len({(host.root, host.engine_port) for host in hosts}) == 1
    names = {host.name: PROFILE if shared else host.name for host in hosts}
    document = {
        "defaults": {"service": SERVICE},
        "hosts": {host.name: _entry(host, names[host.name]) for host in hosts},
        "groups": {"lab-all": [host.name for host in hosts]},
        "profiles": {names[host.name]: _profile(host) for host in hosts},
    }
    text = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(document, text)
    fresh = path.with_suffix(".new")
    fresh.write_text(
        "# Written by `ddtree-ops lab up`; `ddtree-ops lab down` removes it.\n" + text.getvalue()
    )
    fresh.chmod(0o600)
    os.replace(fresh, path)  # noqa: PTH105  # says what it does


def _entry(host: LabHost, profile: str) -> dict[str, object]:
    return {
        "address": host.address,
        "port": host.port,
        "user": host.user,
        "identity_file": str(host.identity_file),
        "known_hosts": str(host.known_hosts),
        "service": SERVICE,
        "profile": profile,
    }


def _profile(host: LabHost) -> dict[str, object]:
    return {
        "service": SERVICE,
        "venv": host.venv,
        "launcher": LAUNCHER,
        "model": host.target,
        "drafter": host.draft,
        "port": host.engine_port,
        "budget": BUDGET,
        "topk": TOPK,
        "load_timeout_s": 120,
        "stop_timeout_s": 20,
        "environment": {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    }
