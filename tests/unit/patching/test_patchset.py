"""A patch set's YAML: what it may say, and complaints that carry file, line and key."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from ddtree_ops.model.errors import UsageError
from ddtree_ops.patching.apply import resolve
from ddtree_ops.patching.patchset import Action, Claim, Edit, PatchSet, covers, load, names_in


def complaint(world, **changes) -> str:
    file = world.write_set(**changes)
    with pytest.raises(UsageError) as caught:
        load(file.parent)
    return str(caught.value).removeprefix(f"{file}:")


def test_an_unknown_key_is_named_with_its_line(world) -> None:
    expected = "5:colour: got an unknown key, expected one that docs/patches.md lists"
    assert expected == complaint(world, body="colour: red\n")


def test_an_unknown_key_of_an_edit_is_named_with_its_place(world) -> None:
    edits = world.edit(anchor="anchor: x = 1") + "    fuzz: 2\n"
    assert complaint(world, edits=edits).startswith("12:edits.0.fuzz: got an unknown key")


@pytest.mark.parametrize(
    "path", ["../evil.py", "sglang/../../evil.py", "/etc/cron.d/evil", "sglang//x.py", "other/x.py"]
)
def test_a_path_that_could_leave_the_tree_is_refused(world, path) -> None:
    expected = f"6:overlay.0: got {path!r}, expected a plain path below sglang/"
    assert expected == complaint(world, body=f"overlay:\n  - {path}\n")


def test_an_overlay_that_links_out_of_its_directory_is_refused(world) -> None:
    file = world.write_set(body="overlay: [sglang/new.py]\n")
    (world.root / "secret.py").write_text("x = 1\n", encoding="utf-8")
    (file.parent / "overlay/sglang").mkdir(parents=True)
    (file.parent / "overlay/sglang/new.py").symlink_to(world.root / "secret.py")
    with pytest.raises(UsageError, match=r"overlay\.0: got a link to .*secret\.py"):
        load(file.parent)


def test_an_overlay_without_its_file_is_named(world) -> None:
    assert "overlay.0: got no file" in complaint(world, body="overlay: [sglang/new.py]\n")


def test_a_version_range_that_is_none_is_named(world) -> None:
    assert complaint(world, versions="0.5.9 to 0.5.16").startswith(
        "4:versions: got '0.5.9 to 0.5.16', expected a PEP 440"
    )


def test_yaml_that_does_not_parse_names_its_line(world) -> None:
    assert complaint(world, body="provides: [a\n").startswith("6: got ")


def test_a_set_must_be_named_like_its_directory(world) -> None:
    file = world.write_set("wide")
    file.write_text(file.read_text().replace("name: wide", "name: narrow"), encoding="utf-8")
    with pytest.raises(UsageError, match="1:name: got narrow, expected its directory's name wide"):
        load(file.parent)


def test_a_string_that_indenting_would_change_is_refused(world) -> None:
    text = 'self.banner = """a\nb"""'
    found = complaint(world, edits=world.edit(anchor="anchor: x = 1", text=text))
    assert found.endswith("got a string over several lines at line 1, expected one line each")


def test_a_docstring_over_several_lines_may_be_added(world) -> None:
    text = 'def more(self):\n    """One.\n\n    Two.\n    """\n    return 1'
    assert load(world.write_set(edits=world.edit("append_method", text=text)).parent).name == "wide"


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ({"action": "replace"}, "got no anchor, expected 1 anchor for replace"),
        ({"action": "top", "anchor": "anchor: x = 1"}, "got ['anchor'], expected 0 anchor for top"),
        (
            {"action": "before", "anchor": "anchor_expr: x"},
            "got action before, expected replace for anchor_expr",
        ),
        (
            {"anchor": 'anchor: "x = "'},
            "got anchor that does not parse (invalid syntax), expected statements",
        ),
        ({"anchor": "anchor: x = 1", "text": "def f(:"}, "got text that does not parse"),
    ],
)
def test_an_edit_that_could_not_be_carried_out_is_refused(world, edit, expected) -> None:
    assert expected in complaint(world, edits=world.edit(**edit))


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.5.11+cu129", True),
        ("0.5.16.post2", True),
        ("0.5.12.dev3+g1a2b", True),
        ("0.5.17", False),
        ("0.5.8", False),
    ],
)
def test_local_suffixes_and_builds_between_releases_count_as_their_release(version, expected) -> None:
    assert expected == covers(">=0.5.9,<0.5.17", version)


def test_a_version_that_is_none_is_named() -> None:
    with pytest.raises(UsageError, match="got 'latest', expected a version such as"):
        covers(">=0.5.9", "latest")


def test_the_sets_of_a_directory_are_those_with_a_patchset(world) -> None:
    world.write_set("wide")
    (world.sets / "notes").mkdir()
    assert names_in(world.sets) == ("wide",)


def test_every_shipped_set_loads_with_what_it_includes() -> None:
    shipped = Path(__file__).parents[3] / "patches"
    for name in names_in(shipped):
        assert name in [one.name for one in resolve([name], shipped)]


def test_the_page_lists_every_key_and_action(world) -> None:
    page = (Path(__file__).parents[3] / "docs" / "patches.md").read_text(encoding="utf-8")
    keys = {*PatchSet.model_fields, *Edit.model_fields, *Claim.model_fields} - {"root"}
    assert [key for key in sorted({*keys, *get_args(Action)}) if key not in page] == []
