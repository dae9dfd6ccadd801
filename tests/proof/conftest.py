"""The real SGLang 0.5.11, and what a patch set makes of it; skipped where torch or triton is missing."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from pathlib import Path

import pytest

from ddtree_ops.cli.sources import wheel
from ddtree_ops.patching.apply import apply_sets
from ddtree_ops.patching.source import open_source

os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported by any test of this process

PATCHES = Path(__file__).parents[2] / "patches"
VERSION = "0.5.11"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.proof)
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"needs {' and '.join(missing)}: the [proof] extra"))


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release's own Python files."""
    root = tmp_path_factory.mktemp("stock")
    with zipfile.ZipFile(wheel(VERSION)) as archive:
        archive.extractall(root, [name for name in archive.namelist() if name.endswith(".py")])
    return root


@pytest.fixture(scope="session")
def patched(stock: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Directories to look a file up in: the patched files first."""
    root = tmp_path_factory.mktemp("patched")
    source = open_source(stock)
    for file in apply_sets(["graph-width"], PATCHES, source.read, VERSION).files:
        path = root / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.after.encode())
    return root, stock
