"""Operators' own diffs: exactly at their lines or not at all."""

from __future__ import annotations

import difflib

import pytest

from ddtree_ops.model.errors import Refused, UsageError


@pytest.fixture
def diff(world):
    """Writes a diff of the stock source against an edited one."""

    def write(old: str, new: str, header: str = "") -> str:
        edited = world.source.replace(old, new, 1)
        lines = difflib.unified_diff(
            world.source.splitlines(keepends=True),
            edited.splitlines(keepends=True),
            f"a/python/{world.path}",
            f"b/python/{world.path}",
        )
        path = world.root / "mine.patch"
        path.write_text(header + "".join(lines), encoding="utf-8")
        return str(path)

    return write


def test_a_diff_of_sglangs_repository_is_applied_before_the_sets(world, diff) -> None:
    world.write_set()
    (file,) = world.apply(diff("return 0", "return 1"), "wide").files
    assert "return 1" in file.after
    assert "budget + 1" in file.after
    assert world.source == file.before


def test_context_that_differs_by_a_word_is_refused_with_both_texts(world, diff) -> None:
    name = diff("return 0", "return 1")
    text = world.source.replace("if bs:", "if rows:")
    with pytest.raises(Refused, match=r"mine\.patch:3: .*backend\.py:20: got 'if rows:', expected 'if bs:'"):
        world.apply(name, text=text)


def test_a_hunk_that_would_fit_some_lines_further_is_refused(world, diff) -> None:
    name = diff("return 0", "return 1")
    with pytest.raises(Refused, match="no fuzz"):
        world.apply(name, text="\n\n" + world.source)


def test_a_diff_keeps_the_files_own_line_ends(world, diff) -> None:
    (file,) = world.apply(diff("return 0", "return 1"), text=world.source.replace("\n", "\r\n")).files
    assert "return 1\r\n" in file.after
    assert "\n" not in file.after.replace("\r\n", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello\n", "got no file headers"),
        ("--- a/sglang/x.py\n+++ b/sglang/x.py\n", "got a file header without hunks"),
        ("--- a/sglang/x.py\n+++ b/sglang/x.py\n@@ -1,2 +1,2 @@\n x\n", "got 1 and 1 lines"),
        ("--- a/sglang/x.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", "got a diff that deletes a file"),
        ("--- /dev/null\n+++ b/../x.py\n@@ -0,0 +1 @@\n+x\n", "expected a plain path below sglang/"),
        ("rename from sglang/a.py\n", "expected text changes alone"),
    ],
)
def test_a_diff_that_says_more_than_changes_is_a_usage_error(world, text, expected) -> None:
    path = world.root / "bad.patch"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=expected):
        world.apply(str(path))


def test_a_new_file_comes_from_a_diff(world) -> None:
    path = world.root / "new.patch"
    path.write_text("--- /dev/null\n+++ b/sglang/new.py\n@@ -0,0 +1,2 @@\n+x = 1\n+y = 2\n", encoding="utf-8")
    (file,) = world.apply(str(path)).files
    assert (file.before, file.after) == (None, "x = 1\ny = 2\n")
