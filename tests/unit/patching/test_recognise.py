"""Trees told apart: stock, ours, somebody else's, and releases that no set fits."""

from __future__ import annotations

import json
import stat

import pytest

from ddtree_ops.model.errors import UsageError
from ddtree_ops.patching.recognise import Fit, State, recognise
from ddtree_ops.patching.source import open_source


@pytest.fixture
def state(world):
    """The state of a site-packages whose backend has this text."""

    def of(text: str, *, record: bool = True, stock: bool = False):
        source = open_source(world.write_tree(text, record=record))
        reader = {world.path: world.source, "sglang/__init__.py": ""}.get
        return recognise(source, world.sets, reader if stock else None)

    return of


@pytest.fixture
def patched(world) -> str:
    world.write_set()
    (file,) = world.apply().files
    return file.after


def test_files_with_their_records_hashes_are_stock(world, state) -> None:
    world.write_set()
    found = state(world.source)
    assert (found.state, found.files, found.sets[0].fit) == (State.STOCK, (), Fit.FITS)


def test_our_patch_is_recognised_by_what_is_left_without_it(state, patched) -> None:
    found = state(patched)
    assert (found.state, found.files[0].sets, found.applied) == (State.PATCHED, ("wide",), ("wide",))


def test_somebody_elses_line_is_named_with_its_text(world, state) -> None:
    found = state(world.source.replace("return 0", "return 1"), stock=True)
    (file,) = found.files
    assert (file.state, file.lines, file.note) == (State.MODIFIED, ((22, 22),), "line 22: return 1")


def test_a_foreign_line_beside_our_patch_is_told_from_ours(state, patched) -> None:
    (file,) = state(patched.replace("return 0", "return 1"), stock=True).files
    assert (file.state, file.sets, file.lines) == (State.MODIFIED, ("wide",), ((25, 25),))


def test_a_deleted_line_is_named(world, state) -> None:
    (file,) = state(
        world.source.replace("            return bs * self.width\n", "            pass\n"), stock=True
    ).files
    assert file.lines == ((21, 21),)


def test_a_change_inside_our_own_lines_does_not_pass_as_ours(state, patched) -> None:
    (file,) = state(patched.replace("budget + 1", "budget + 2")).files
    assert (file.state, file.lines) == (State.MODIFIED, ((13, 16),))


def test_without_record_nothing_is_claimed(world, state) -> None:
    assert state(world.source, record=False).state is State.UNVERIFIED


def test_without_record_the_wheels_text_decides(world, state) -> None:
    assert state(world.source, record=False, stock=True).state is State.STOCK


def test_a_file_that_the_wheel_did_not_bring_is_foreign(world) -> None:
    site = world.write_tree()
    (site / "sglang/extra.py").write_text("x = 1\n", encoding="utf-8")
    (file,) = recognise(open_source(site), world.sets).files
    assert (file.state, file.note) == (State.MODIFIED, "not in the wheel's RECORD")


def test_a_sets_own_new_file_is_ours(world) -> None:
    own = world.write_set(body="overlay: [sglang/extra.py]\n", edits="").parent / "overlay/sglang/extra.py"
    own.parent.mkdir(parents=True)
    own.write_text("x = 1\n", encoding="utf-8")
    site = world.write_tree()
    (site / "sglang/extra.py").write_text("x = 1\n", encoding="utf-8")
    found = recognise(open_source(site), world.sets)
    assert (found.state, found.applied) == (State.PATCHED, ("wide",))


def test_a_release_that_no_edit_fits_names_the_anchor_and_what_stands_there(world, state) -> None:
    world.write_set()
    (fit,) = state(world.source.replace("self.width = runner.args.width", "self.width = other()")).sets
    assert Fit.UNSUPPORTED is fit.fit
    assert fit.detail.endswith("there: line 13: self.width = other()")


def test_a_wheel_is_read_without_unpacking(world) -> None:
    source = open_source(world.write_wheel())
    assert ("0.5.11+cu129", world.source, None) == (
        source.version,
        source.read(world.path),
        source.read("sglang/x.py"),
    )
    assert recognise(source, world.sets).state is State.STOCK


def test_a_wheel_without_record_is_unverified(world) -> None:
    assert recognise(open_source(world.write_wheel(record=False)), world.sets).state is State.UNVERIFIED


def test_an_editable_install_leads_to_its_checkout(world) -> None:
    site = world.write_tree()
    checkout = world.root / "checkout/python"
    checkout.mkdir(parents=True)
    (site / "sglang").rename(checkout / "sglang")
    url = {"url": f"file://{world.root}/checkout", "dir_info": {"editable": True}}
    (site / "sglang-0.5.11.dist-info/direct_url.json").write_text(json.dumps(url), encoding="utf-8")
    source = open_source(site)
    assert (True, "0.5.11", checkout) == (source.editable, source.version, source.root)
    assert recognise(source, world.sets).state is State.UNVERIFIED


def test_a_source_tree_states_its_own_version(world) -> None:
    site = world.write_tree(record=False)
    (site / "sglang-0.5.11.dist-info/METADATA").unlink()
    (site / "sglang-0.5.11.dist-info").rmdir()
    (site / "sglang/_version.py").write_text(
        "version: str\n__version__ = version = '0.5.12.dev4'\n", encoding="utf-8"
    )
    assert open_source(site / "sglang").version == "0.5.12.dev4"


def test_a_tree_that_is_read_only_is_only_read(world) -> None:
    world.write_set()
    site = world.write_tree()
    files = [path for path in site.rglob("*") if path.is_file()]
    for path in files:
        path.chmod(stat.S_IREAD)
    before = [(path.stat().st_mtime_ns, path.read_bytes()) for path in files]
    recognise(open_source(site), world.sets)
    assert before == [(path.stat().st_mtime_ns, path.read_bytes()) for path in files]


@pytest.mark.parametrize("name", ["missing", "empty", "text.whl"])
def test_what_holds_no_sglang_is_a_usage_error(world, name) -> None:
    (world.root / "empty").mkdir()
    (world.root / "text.whl").write_text("hello", encoding="utf-8")
    with pytest.raises(UsageError, match="expected"):
        open_source(world.root / name)
