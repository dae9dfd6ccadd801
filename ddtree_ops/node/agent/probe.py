"""Everything one probe brings back, gathered while nvidia-smi thinks."""

from __future__ import annotations

import os
import platform
import pwd
import socket
import time

from .base import Json, Place, Problem, node_root
from .files import link_name
from .gpus import ask_gpus, gpu_facts
from .guard import read_guard, shown_guard
from .lock import read_lock
from .packages import venv_python
from .ports import listeners_of
from .releases import list_releases, read_manifest
from .sglang import sglang_facts
from .systemd import run_command
from .units import probe_units, unit_facts

MODEL_FILES = ("config.json", "chat_template.jinja", "chat_template.json", "tokenizer_config.json")
MODEL_FILE_BYTES = 2**20  # a tokenizer_config.json with many added tokens is some 100 KB


def verb_probe(place: Place, request: Json) -> Json:
    asked = ask_gpus()
    launcher = request.get("launcher") or "sglang.launch_server"
    systemd = systemd_version()
    unit, engines, owners = _units(place, launcher if systemd else "")
    current = link_name(place.current)
    venv = request.get("venv") or ""
    facts = {
        **machine_facts(),
        "systemd": systemd,
        "state_dir": place.state_dir,
        "unit_dir": place.unit_dir,
        "disk_free_mib": disk_free(place.dir),
        "venv_python": venv_python(venv) if venv else None,
        "sglang": sglang_facts(venv, launcher, request.get("read") or []),
        "unit": unit,
        "engines": engines,
        "listeners": listeners_of(request.get("port"), owners),
        "paths": [[path, os.path.exists(path)] for path in request.get("paths") or []],
        "model_files": _model_files(request.get("model") or ""),
        "lock": read_lock(place),
        "guard": shown_guard(read_guard(place)),
        "current": current,
        "previous": link_name(place.previous),
        "releases": list_releases(place),
        "manifest": read_manifest(place, current) if current else None,
    }
    facts["gpus"], facts["gpu_note"] = gpu_facts(asked)
    facts["now"] = time.time()
    return facts


def _model_files(model: str) -> list[list[str]]:
    """Name and text of the model's small files that decide prompts and sizes, those that are there."""
    found = []
    for name in MODEL_FILES:
        path = os.path.join(model, name)
        try:
            if os.path.isabs(path) and os.path.getsize(path) <= MODEL_FILE_BYTES:
                with open(path, encoding="utf-8") as file:
                    found.append([name, file.read()])
        except (OSError, ValueError):
            continue
    return found


def _units(place: Place, launcher: str) -> tuple[Json, list[Json], dict[int, str]]:
    if not launcher:
        return unit_facts(place.unit_name, {}), [], {}
    return probe_units(place.unit_name, launcher)


def machine_facts() -> Json:
    return {
        "hostname": socket.gethostname(),
        "os": _os_name(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "user": _user(),
        "root": os.geteuid() == 0 or node_root() != "/",
    }


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _os_name() -> str:
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                for line in file:
                    if line.startswith("PRETTY_NAME="):
                        return line.partition("=")[2].strip().strip("\"'")
        except OSError:
            continue
    return platform.system()


def systemd_version() -> str | None:
    """ "252" of `systemd 252 (252.38-1)`; a stand-in names itself in the same place."""
    try:
        done = run_command("systemctl", "--version", timeout=10)
        booted = run_command("systemctl", "show", "--property=Version", timeout=10)
    except Problem:
        return None
    if done.returncode != 0 or booted.returncode != 0:
        return None
    first = done.stdout.partition("\n")[0]
    return first.replace("systemd ", "", 1).partition(" (")[0].strip() or None


def disk_free(path: str) -> int:
    """MiB free for root where `path` is, or will be."""
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    free = os.statvfs(path)
    return free.f_bavail * free.f_frsize // 2**20
