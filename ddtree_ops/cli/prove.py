"""Runs the proof in a process of its own, under a Python that has torch and triton."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from ddtree_ops.cli.world import shipped
from ddtree_ops.lab.image import cache_directory
from ddtree_ops.model.errors import OpsError, UsageError
from ddtree_ops.model.patch import PatchedTree
from ddtree_ops.patching.apply import apply_sets
from ddtree_ops.patching.source import Source

PYTHON = "DDTREE_OPS_PROOF_PYTHON"
TIMEOUT_S = 1800
CODE = "import importlib.util as i, sys; sys.exit(any(i.find_spec(n) is None for n in ('torch', 'triton')))"


def proven(source: Source, names: tuple[str, ...], budgets: str, cases: int) -> dict[str, Any]:
    """The proof's document for a source under some sets; raises UsageError where torch is missing."""
    python = os.environ.get(PYTHON) or sys.executable
    if subprocess.run((python, "-c", CODE), check=False).returncode != 0:
        raise UsageError(
            "patch prove",
            f"got {python} without torch and triton, expected both",
            hint=f"pip install 'ddtree-ops[proof]', or {PYTHON}=/venv/bin/python of one that has them",
        )
    made = apply_sets(names, shipped("patches"), source.read, source.version)
    with tempfile.TemporaryDirectory(prefix="ddtree-ops-") as folder:
        _write(made, Path(folder))
        argv = (
            python, "-m", "ddtree_ops.patching.proof", "--compact", "--tree", folder,
            "--tree", str(base_folder(source)), "--budgets", budgets, "--cases", str(cases),
        )  # fmt: skip
        return _run(argv)


def base_folder(source: Source) -> Path:
    """The directory that holds the source's `sglang/`; a wheel is unpacked once, into the cache."""
    if source.wheel is None:
        return source.root or Path()
    place = cache_directory() / "trees" / source.wheel.stem
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch, zipfile.ZipFile(source.wheel) as wheel:
            wheel.extractall(
                Path(scratch) / "tree", [name for name in wheel.namelist() if name.endswith(".py")]
            )
            (Path(scratch) / "tree").rename(place)
    return place


def _write(made: PatchedTree, folder: Path) -> None:
    for file in made.files:
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.after, encoding="utf-8", newline="")


def _run(argv: tuple[str, ...]) -> dict[str, Any]:
    package = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((package, os.environ.get("PYTHONPATH", "")))}
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False
        )
        document = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise OpsError("patch prove", f"got no end in {TIMEOUT_S} s, expected a verdict") from error
    except ValueError as error:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise OpsError("patch prove", f"could not be run: {last}", hint="ddtree-ops patch check") from error
    if not isinstance(document, dict):
        raise OpsError("patch prove", "got no document, expected one")
    return document
