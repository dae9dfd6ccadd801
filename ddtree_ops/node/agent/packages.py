"""What a venv has installed, by its metadata alone: nothing is imported."""

from __future__ import annotations

import base64
import csv
import glob
import hashlib
import json
import os
import re
import subprocess

from .base import Json

MOST_TEXT = 2_000_000  # of one file that differs
MOST_MODIFIED = 200
SOURCE_SUFFIXES = (".py", ".pyi", ".cu", ".cuh", ".h", ".cpp", ".so", ".jinja", ".json")


def site_folders(venv: str) -> list[str]:
    return sorted(glob.glob(os.path.join(glob.escape(venv), "lib*/python3*/site-packages")))


def venv_python(venv: str) -> str | None:
    """The venv's Python version by its own pyvenv.cfg, else by asking it."""
    interpreter = os.path.join(venv, "bin/python")
    if not os.path.exists(interpreter):
        return None
    try:
        with open(os.path.join(venv, "pyvenv.cfg"), encoding="utf-8", errors="replace") as file:
            found = re.search(r"^version(?:_info)?\s*=\s*([\d.]+)", file.read(), re.MULTILINE)
        if found:
            return ".".join(found.group(1).rstrip(".").split(".")[:3])
    except OSError:
        pass
    try:
        words = subprocess.check_output([interpreter, "--version"], timeout=10, encoding="utf-8").split()
    except (OSError, subprocess.SubprocessError):
        return None
    return words[-1] if words else None


def distribution(folders: list[str], *names: str) -> tuple[str, str] | tuple[None, None]:
    """(version, dist-info folder) of the first of these distributions that is there."""
    for folder in folders:
        for name in names:
            pattern = re.compile(
                re.escape(name).replace("_", "[-_.]") + r"-([^-/]+)\.dist-info", re.IGNORECASE
            )
            for entry in sorted(os.listdir(folder)):
                found = pattern.fullmatch(entry)
                if found:
                    return _metadata_version(os.path.join(folder, entry)) or found.group(1), os.path.join(
                        folder, entry
                    )
    return None, None


def _metadata_version(info: str) -> str | None:
    try:
        with open(os.path.join(info, "METADATA"), encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("Version:"):
                    return line.partition(":")[2].strip()
                if not line.strip():
                    break
    except OSError:
        pass
    return None


def editable_package(info: str) -> str | None:
    """The folder that holds an editable install's `sglang/`; None when it is an ordinary install."""
    try:
        with open(os.path.join(info, "direct_url.json"), encoding="utf-8") as file:
            url = json.load(file)
    except (OSError, ValueError):
        return None
    if not (url.get("dir_info") or {}).get("editable"):
        return None
    root = str(url.get("url", "")).replace("file://", "", 1)
    for below in ("", "python", "src"):
        if os.path.isdir(os.path.join(root, below, "sglang")):
            return os.path.join(root, below).rstrip("/")
    return root


def verify_record(info: str, package: str) -> dict[str, str | None] | None:
    """Files below sglang/ that are not as RECORD says, with the sha256 that it promises; None: no RECORD.

    A file that RECORD does not name has None for it, as has one whose hash is of another kind.
    """
    try:
        with open(os.path.join(info, "RECORD"), encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if len(row) >= 2 and row[0].startswith("sglang/")]
    except OSError:
        return None
    hashes = {path: value for path, value, *_ in rows if "__pycache__/" not in path}
    if not any(hashes.values()):
        return None
    changed = [
        path for path, value in hashes.items() if value and _record_hash(package, path, value) != value
    ]
    added = [path for path in _sources_below(package) if path not in hashes]
    return {path: _promised(hashes.get(path, "")) for path in sorted(changed + added)}


def _promised(value: str) -> str | None:
    """RECORD's `sha256=…` in hexadecimal."""
    kind, _, digest = value.partition("=")
    if kind != "sha256":
        return None
    return base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()


def _record_hash(package: str, path: str, value: str) -> str:
    """The file's hash as RECORD writes it; "" when it can't be read."""
    kind = value.partition("=")[0]
    try:
        with open(os.path.join(package, path), "rb") as file:
            digest = hashlib.new(kind, file.read()).digest()
    except (OSError, ValueError):
        return ""
    return kind + "=" + base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _sources_below(package: str) -> list[str]:
    found = []
    for folder, subfolders, names in os.walk(os.path.join(package, "sglang")):
        subfolders[:] = [name for name in subfolders if name != "__pycache__"]
        below = os.path.relpath(folder, package)
        found += [os.path.join(below, name) for name in names if name.endswith(SOURCE_SUFFIXES)]
    return found


def node_files(package: str, paths: list[str]) -> list[Json]:
    """model.facts.NodeFile of each path, with its text where it is text of a sane size."""
    return [_node_file(package, path) for path in paths[:MOST_MODIFIED]]


def _node_file(package: str, path: str) -> Json:
    try:
        with open(os.path.join(package, path), "rb") as file:
            data = file.read()
    except OSError:
        return {"path": path, "sha256": "", "text": None}
    try:
        text = data.decode() if len(data) <= MOST_TEXT else None
    except UnicodeDecodeError:
        text = None
    return {"path": path, "sha256": hashlib.sha256(data).hexdigest(), "text": text}
