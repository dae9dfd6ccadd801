"""Unit files are read as systemd reads them, and words are quoted so that it reads them back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree_ops.config.unit import parse_unit, quote_word, split_words
from ddtree_ops.model.errors import UsageError

HAND_WRITTEN = r"""
# by hand
[Unit]
Description=SGLang

[Service]
Environment="A=1 2" B=3
ExecStart=/opt/venv/bin/python -m sglang.launch_server \
  --model-path /models/k26 \
  # a comment between continuation lines
  --json-model-override-args '{"rope": "x y"}' --home %h ${EXTRA}
ExecStartPre=/bin/true
ExecStartPre=
ExecStartPre=/bin/false
"""


def test_continuation_lines_are_joined_across_comments() -> None:
    start = parse_unit(HAND_WRITTEN).value("Service", "ExecStart")
    assert start is not None
    assert split_words(start) == (
        "/opt/venv/bin/python", "-m", "sglang.launch_server", "--model-path", "/models/k26",
        "--json-model-override-args", '{"rope": "x y"}', "--home", "%h", "${EXTRA}",
    )  # fmt: skip


def test_an_empty_assignment_resets_a_list() -> None:
    assert parse_unit(HAND_WRITTEN).values("Service", "ExecStartPre") == ("/bin/false",)


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"))
    )
)
def test_quoted_words_are_read_back(words: list[str]) -> None:
    line = " ".join(quote_word(word) for word in words)
    assert split_words(line) == tuple(words)


def test_an_open_quote_is_an_error_that_shows_the_line() -> None:
    with pytest.raises(UsageError, match='open " in'):
        split_words('python "--a')
