"""Sets applied to sources: where edits go, and every reason to refuse before anything is touched."""

from __future__ import annotations

import re

import pytest

from ddtree_ops.model.errors import Refused, UsageError
from ddtree_ops.patching.apply import digest, needed_files, resolve, unified_diff
from ddtree_ops.patching.lines import unapplied

WIDTH = "anchor: self.width = runner.args.width"


def after(tree) -> str:
    (file,) = tree.files
    return file.after


def refused(world, *names: str, **given) -> str:
    with pytest.raises(Refused) as caught:
        world.apply(*names, **given)
    return str(caught.value)


def test_a_statement_is_found_in_its_function_and_replaced_under_a_marker(world) -> None:
    world.write_set()
    expected = world.source.replace(
        "        self.width = runner.args.width\n        self.depth",
        "        # ddtree-ops: wide {\n"
        "        # - self.width = runner.args.width\n"
        "        self.width = runner.args.budget + 1\n"
        "        # ddtree-ops: wide }\n"
        "        self.depth",
    )
    assert expected == after(world.apply())


def test_an_anchor_is_compared_as_syntax_not_as_text(world) -> None:
    anchor = "anchor: self.depth = runner . args.depth+1"
    world.write_set(edits=world.edit(anchor=anchor, text="self.depth = 2", within="Backend.__init__"))
    assert "        # -     + 1\n        # - )\n        self.depth = 2\n" in after(world.apply())


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("before", "pass\n        # ddtree-ops: wide }\n        self.width = runner"),
        ("after", "self.width = runner.args.width\n        # ddtree-ops: wide {\n        pass\n"),
    ],
)
def test_lines_are_put_beside_a_statement(world, action, expected) -> None:
    world.write_set(edits=world.edit(action, anchor=WIDTH, within="Backend.__init__"))
    assert expected in after(world.apply())


def test_a_statement_is_found_by_its_first_words(world) -> None:
    world.write_set(edits=world.edit("before", anchor='anchor_startswith: "if bs:"', within="Backend.rows"))
    assert "        # ddtree-ops: wide }\n        if bs:\n" in after(world.apply())


def test_an_expression_is_replaced_in_its_line(world) -> None:
    world.write_set(
        edits=world.edit(anchor="anchor_expr: bs*self.width", text="bs * 17", within="Backend.rows")
    )
    assert "            # - return bs * self.width\n            return bs * 17\n" in after(world.apply())


def test_a_method_is_added_at_the_end_of_its_class(world) -> None:
    world.write_set(edits=world.edit("append_method", text="def more(self):\n    return 1"))
    expected = "        return 0\n    # ddtree-ops: wide {\n\n    def more(self):\n        return 1\n"
    assert expected in after(world.apply())


def test_module_level_lines_go_below_the_imports(world) -> None:
    world.write_set(edits=world.edit("top", text="import sys", within='""'))
    assert "import os\n# ddtree-ops: wide {\nimport sys\n# ddtree-ops: wide }\n" in after(world.apply())


def test_several_edits_of_one_set_keep_their_order(world) -> None:
    inserts = [world.edit("before", anchor=WIDTH, text=f"x = {n}", within="Backend.__init__") for n in (1, 2)]
    world.write_set(edits="".join(inserts))
    assert re.findall(r"x = (\d)", after(world.apply())) == ["1", "2"]


@pytest.mark.parametrize("newline", ["\r\n", "\r", "\n"])
def test_line_ends_stay_as_the_file_has_them(world, newline) -> None:
    world.write_set()
    text = world.source.replace("\n", newline)
    patched = after(world.apply(text=text))
    assert patched.count(newline) == len(re.findall(r"\r\n|\r|\n", patched))


@pytest.mark.parametrize("text", ["{}", "\ufeff{}", "{}\r\n# end\r\n"], ids=["open end", "BOM", "mixed"])
def test_taking_our_blocks_out_gives_the_base_byte_for_byte(world, text) -> None:
    world.write_set(edits=world.edit(anchor=WIDTH, within="Draft.__init__"))
    base = text.replace("{}", world.source.rstrip("\n"))
    assert base == unapplied(after(world.apply(text=base)))


def test_a_missing_anchor_names_what_stands_there_instead(world) -> None:
    world.write_set()
    text = world.source.replace("self.width = runner.args.width", "self.width = spec().width", 1)
    expected = (
        "sglang/srt/backend.py: Backend.__init__: got 0 places for 'self.width = runner.args.width', "
        "expected 1; there: line 13: self.width = spec().width"
    )
    assert expected == refused(world, text=text)


def test_an_anchor_that_stands_twice_names_both_lines(world) -> None:
    world.write_set()
    text = world.source.replace(
        "        self.depth", "        self.width = runner.args.width\n        self.depth"
    )
    assert refused(world, text=text).endswith("expected 1; at lines 13, 14")


def test_a_missing_class_names_what_is_there(world) -> None:
    world.write_set()
    text = world.source.replace("class Backend", "class Engine")
    assert refused(world, text=text).endswith(
        "got 0 definitions of Backend, expected 1; there: Engine, Draft"
    )


def test_source_that_was_cut_short_names_its_line(world) -> None:
    world.write_set()
    text = world.source[: world.source.index("+ 1")]
    assert "sglang/srt/backend.py:14: got source that does not parse ('(' was never closed)" in refused(
        world, text=text
    )


def test_a_statement_that_shares_its_line_is_refused(world) -> None:
    world.write_set()
    text = world.source.replace(
        "self.width = runner.args.width\n", "self.width = runner.args.width; x = 1\n", 1
    )
    assert refused(world, text=text).endswith("expected one statement on its line")


def test_a_patched_file_is_not_patched_again(world) -> None:
    world.write_set()
    patched = after(world.apply())
    assert "got a file already patched by wide, expected the stock file" in refused(world, text=patched)


def test_naming_a_set_twice_is_a_usage_error(world) -> None:
    world.write_set()
    with pytest.raises(UsageError, match="got wide twice"):
        world.apply("wide", "wide")


def test_two_sets_at_one_statement_are_refused(world) -> None:
    world.write_set()
    world.write_set("other", edits=world.edit("before", anchor=WIDTH, within="Backend.__init__"))
    expected = (
        "sglang/srt/backend.py:13: got patch sets wide and other at one statement, expected one set for each"
    )
    assert expected == refused(world, "wide", "other")


def test_a_set_that_replaces_around_another_sets_statement_is_refused(world) -> None:
    world.write_set("block", edits=world.edit(anchor='anchor_startswith: "if bs:"', within="Backend.rows"))
    world.write_set(
        "inner", edits=world.edit(anchor="anchor_expr: bs * self.width", text="1", within="Backend.rows")
    )
    assert "block and inner at one statement" in refused(world, "block", "inner")


def test_two_sets_in_one_function_are_fine_at_different_statements(world) -> None:
    world.write_set()
    world.write_set(
        "deep",
        edits=world.edit("after", anchor='anchor_startswith: "self.depth ="', within="Backend.__init__"),
    )
    text = after(world.apply("wide", "deep"))
    assert text == after(world.apply("deep", "wide"))
    assert world.source == unapplied(text)


def test_included_sets_come_first_and_once(world) -> None:
    world.write_set("base", edits="")
    world.write_set("wide", body="includes: [base]\n")
    world.write_set("all", body="includes: [wide, base]\n", edits="")
    assert [one.name for one in resolve(["all"], world.sets)] == ["base", "wide", "all"]


def test_includes_in_a_circle_are_named(world) -> None:
    world.write_set("a", body="includes: [b]\n", edits="")
    world.write_set("b", body="includes: [a]\n", edits="")
    with pytest.raises(UsageError, match="a → b → a"):
        resolve(["a"], world.sets)


def test_an_unknown_set_names_the_known_ones(world) -> None:
    world.write_set()
    with pytest.raises(UsageError, match="got tall, expected one of: wide"):
        world.apply("tall")


def test_a_release_outside_the_range_is_refused(world) -> None:
    world.write_set()
    assert "got sglang 0.5.17, expected >=0.5.9,<0.5.17" in refused(world, version="0.5.17")


def test_a_release_that_does_not_need_the_set_says_why(world) -> None:
    body = f"unnecessary:\n  because: width comes along\n  evidence:\n    - file: {world.path}\n      reads: [spec.width]\n"
    world.write_set(body=body)
    text = world.source.replace("runner.args.width", "spec.width")
    tree = world.apply(text=text, version="0.5.20")
    evidence = f"width comes along ({world.path}:13: self.width = spec.width)"
    assert (("wide", evidence),) == tree.not_needed
    assert (tree.sets, tree.files) == ((), ())


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ("reads: [self.height]", "Backend.rows: got no self.height, expected it there"),
        ("arguments: [self, seq_lens]", "Backend.rows: got parameters self, bs, expected also seq_lens"),
        ("reads_any: [a.b, c.d]", "Backend.rows: got none of a.b, c.d, expected one of them there"),
    ],
)
def test_a_broken_contract_names_what_is_missing(world, claim, expected) -> None:
    world.write_set(body=f"contract:\n  - file: {world.path}\n    within: Backend.rows\n    {claim}\n")
    assert refused(world) == f"patch set wide: contract: {world.path}: {expected}"


def test_a_contract_of_other_versions_does_not_bind(world) -> None:
    world.write_set(body=f'contract:\n  - {{file: {world.path}, versions: ">=0.5.14", reads: [nothing]}}\n')
    assert world.apply().sets == ("wide",)


def test_a_file_that_the_release_lacks_is_named(world) -> None:
    world.write_set()
    assert f"got no {world.path}, expected it in sglang 0.5.11" in refused(world, text=None)


def test_an_overlay_adds_a_file_and_never_replaces_one(world) -> None:
    file = world.write_set(body=f"overlay: [sglang/srt/new.py, {world.path}]\n", edits="")
    for name in ("sglang/srt/new.py", world.path):
        path = file.parent / "overlay" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n", encoding="utf-8")
    assert f"got {world.path} there already" in refused(world)
    assert [file.before for file in world.apply(text=None).files] == [None, None]


def test_the_files_that_a_set_looks_at_are_known_before_reading_any(world) -> None:
    claim = "contract:\n  - file: sglang/srt/runner.py\n"
    world.write_set(body=claim)
    assert needed_files(["wide"], world.sets) == (world.path, "sglang/srt/runner.py")


def test_the_digest_changes_with_what_is_written(world) -> None:
    world.write_set()
    one = digest(world.apply())
    world.write_set(edits=world.edit(anchor=WIDTH, text="self.width = 9", within="Backend.__init__"))
    assert one != digest(world.apply())


def test_the_unified_diff_applies_to_the_base_as_an_operators_patch(world) -> None:
    world.write_set()
    tree = world.apply()
    patch = world.root / "ours.patch"
    patch.write_text(unified_diff(tree), encoding="utf-8")
    again = world.apply(str(patch))
    assert (after(tree), ("ours.patch",)) == (after(again), again.sets)
