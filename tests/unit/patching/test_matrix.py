"""The table of releases: how its work is shared out, what a row says, and when checking it fails."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ddtree_ops.model.patch import PatchedTree
from ddtree_ops.patching.recognise import State
from ddtree_ops.patching.source import Source

TOOL = Path(__file__).parents[3] / "tools" / "patch_matrix.py"


@pytest.fixture(scope="module")
def matrix() -> ModuleType:
    spec = importlib.util.spec_from_file_location("patch_matrix", TOOL)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["patch_matrix"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def release(matrix, tmp_path):
    """A release whose kernel is this code, proved with so many wrong rows."""

    def make(version: str, kernel: str = "return 1", wrong: int = 0):
        root = tmp_path / version
        file = root / matrix.KERNELS[0]
        file.parent.mkdir(parents=True)
        file.write_text(f"def _fwd_kernel():\n    # of {version}\n    {kernel}\n", encoding="utf-8")
        return matrix.Release(
            version=version,
            source=Source(where=version, version=version, root=root),
            sources=State.STOCK,
            fits=dict.fromkeys(matrix.names_in(matrix.SETS), "applies"),
            tree=PatchedTree(sglang=version, sets=("graph-width",), not_needed=(), files=()),
            stock={"wrong_rows": 33, "unwritten_rows": 18},
            patched={"cases": 2000, "rows": 40000, "wrong_rows": wrong, "passed": wrong == 0},
        )

    return make


def test_releases_with_one_kernel_are_proved_by_one_worker(matrix, release) -> None:
    releases = [
        release("0.5.11"),
        release("0.5.12"),
        release("0.5.16", "return 2"),
        release("0.5.17", "return 3"),
    ]
    work = [{"version": one.version} for one in releases]
    parts = matrix._shares(releases, work, 2)
    assert [[one["version"] for one in part] for part in parts] == [
        ["0.5.11", "0.5.12"],
        ["0.5.16", "0.5.17"],
    ]


def test_a_row_says_what_applies_the_known_fault_and_the_proof(matrix, release) -> None:
    row = matrix._row(release("0.5.11"), ["graph-width"])
    assert row == "| 0.5.11 | stock | applies | 33 | 18 | 2,000 | 40,000 | 0 |"


def test_the_page_that_was_written_passes_the_check(matrix, release, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(matrix, "PAGE", tmp_path / "page.md")
    page = matrix._page([release("0.5.11")], 2000)
    assert matrix._written(page, []) == 0
    assert matrix._checked(page, []) == 0


def test_a_row_that_changed_fails_the_check_and_a_newer_release_does_not(
    matrix, release, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(matrix, "PAGE", tmp_path / "page.md")
    old, new, worse = release("0.5.11"), release("0.5.99"), release("0.5.12", wrong=3)
    matrix._written(matrix._page([old, worse], 2000), [])
    assert matrix._checked(matrix._page([old, worse, new], 2000), [old, new]) == 0
    assert "not on the page yet: | 0.5.99" in capsys.readouterr().err
    worse.patched["wrong_rows"] = 4
    assert matrix._checked(matrix._page([old, worse], 2000), [old]) == 1


def test_wrong_rows_fail_whatever_the_page_says(matrix, release, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(matrix, "PAGE", tmp_path / "page.md")
    wrong = release("0.5.12", wrong=3)
    page = matrix._page([wrong], 2000)
    assert matrix._written(page, [wrong]) == 1
    assert matrix._checked(page, [wrong]) == 1
