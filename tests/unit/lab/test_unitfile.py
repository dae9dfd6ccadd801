"""Unit files are read as systemd reads them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree_ops.lab.embedded import unitfile


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a b  c", ["a", "b", "c"]),
        ("'a b' \"c d\"", ["a b", "c d"]),
        (r"a\x20b \"q\" \\", ["a b", '"q"', "\\"]),
        (r"a\040b", ["a b"]),
        ("'' x", ["", "x"]),
        ("it's", ["it's"]),
        ("'open", None),
        ("", []),
    ],
)
def test_words_are_split_by_systemds_rules(text: str, words: list[str] | None) -> None:
    assert unitfile.split_words(text) == words


@given(st.lists(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1), max_size=5))
def test_quoted_words_come_back_as_they_were(words: list[str]) -> None:
    quoted = " ".join('"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"' for word in words)
    assert unitfile.split_words(quoted) == words


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("1min 30s", 90.0),
        ("1min30s", 90.0),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("2h", 7200.0),
        ("infinity", float("inf")),
        ("soon", None),
        ("1x", None),
        ("", None),
        ("1min soon", None),
    ],
)
def test_time_spans_are_read_in_seconds(text: str, seconds: float | None) -> None:
    assert unitfile.seconds(text) == seconds


@given(st.integers(1, 10**12).map(lambda count: count / 1000))
def test_spelt_time_spans_are_read_back(span: float) -> None:
    assert unitfile.seconds(unitfile.spell_span(span)) == pytest.approx(span, rel=1e-9)


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (90, "1min 30s"),
        (0.1, "100ms"),
        (2, "2s"),
        (1.5, "1.5s"),
        (0, "0"),
        (86400, "1d"),
        (float("inf"), "infinity"),
    ],
)
def test_time_spans_are_spelt_as_systemd_does(span: float, text: str) -> None:
    assert unitfile.spell_span(span) == text


def test_specifiers_and_variables_are_filled_in() -> None:
    words = ["%n", "%%", "${A}b", "$A", "$$A", "$NONE", "x$A"]
    expected = ["e@1.service", "%", "1 2b", "1", "2", "$A", "x$A"]
    assert unitfile.expand(words, "e@1.service", {"A": "1 2"}) == expected


def test_an_empty_assignment_forgets_those_before_it(tmp_path: Path) -> None:
    (tmp_path / "a.service").write_text("[Service]\nExecStart=/bin/a\nExecStart=\nExecStart=/bin/b\n")
    assert unitfile.read_unit("a.service", tmp_path).all("Service", "ExecStart") == ["/bin/b"]


def test_continued_lines_are_one_and_comments_inside_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.service").write_text("[Service]\nExecStart=/bin/a \\\n# not this\n  --b \\\n  --c\n")
    unit = unitfile.read_unit("a.service", tmp_path)
    assert unitfile.split_words(unit.get("Service", "ExecStart")) == ["/bin/a", "--b", "--c"]


def test_drop_ins_come_after_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.service").write_text("[Service]\nExecStart=/bin/a\nNice=1\n")
    (tmp_path / "a.service.d").mkdir()
    (tmp_path / "a.service.d/x.conf").write_text("[Service]\nNice=2\n")
    assert unitfile.read_unit("a.service", tmp_path).get("Service", "Nice") == "2"


def test_an_absent_unit_has_no_path(tmp_path: Path) -> None:
    assert unitfile.read_unit("a.service", tmp_path).path is None


def test_keys_that_systemd_takes_and_ours_are_known() -> None:
    known = unitfile.known_keys()
    assert {"ExecStart", "KillMode", "LimitNOFILE", "Environment", "TimeoutStartSec"} <= known["Service"]
    assert {"OnBootSec", "AccuracySec"} <= known["Timer"]
    assert {"After", "StartLimitBurst"} <= known["Unit"]


def test_environment_files_take_quotes_and_comments() -> None:
    text = "# c\nA=1\n B = two words \nC=\"q\"\nD='s'\n;x=1\nnothing\n"
    assert unitfile.environment_file(text) == {"A": "1", "B": "two words", "C": "q", "D": "s"}
