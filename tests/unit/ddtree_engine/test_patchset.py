from __future__ import annotations

import ast
from typing import Any

import pytest
from ruamel.yaml import YAML

from .overlay import MODULES, SET


@pytest.fixture(scope="module")
def patchset() -> Any:
    return YAML(typ="safe").load(SET / "patchset.yaml")


def test_every_overlay_file_is_listed_and_every_listed_file_is_there(patchset: Any) -> None:
    root = SET / "overlay"
    there = sorted(str(path.relative_to(root)) for path in root.rglob("*.py"))
    assert there == sorted(patchset["overlay"])


def test_the_set_gives_the_flags_for_one_release_and_brings_both_width_fixes(patchset: Any) -> None:
    assert patchset["versions"] == "==0.5.11"
    assert patchset["provides"] == ["ddtree-flags"]
    assert patchset["includes"] == ["verify-width", "graph-width"]


def test_every_change_to_stock_code_asks_for_the_budget_or_declares_it(patchset: Any) -> None:
    spared = ("request_info()", "resolve_ddtree(self)", "return DDTreeWorker")
    for edit in patchset["edits"]:
        named = "speculative_ddtree_budget" in edit["text"] or any(words in edit["text"] for words in spared)
        assert named, edit["text"]
        assert edit["action"] in ("before", "after"), "stock statements stay"


def test_modules_import_no_ddtree_module_that_the_set_lacks() -> None:
    names = {path.stem for path in MODULES.glob("*.py")}
    for path in MODULES.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and "ddtree" in (node.module or ""):
                assert (node.module or "").rsplit(".", 1)[-1] in names


def test_each_module_says_what_it_is_for() -> None:
    for path in MODULES.glob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path.name
