"""The stand-in's journal keeps journald's promises."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ddtree_ops.lab.embedded.journal import Journal, as_json, split_output


def everything(_: dict[str, str]) -> bool:
    return True


def texts(journal: Journal, cursor: str | None = None) -> list[str]:
    return [entry["MESSAGE"] for entry in journal.after(cursor, everything)]


def test_a_cursor_gives_what_came_later(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    for text in "abc":
        journal.append({"MESSAGE": text})
    assert texts(journal, journal.entries[1]["__CURSOR"]) == ["c"]
    journal.close()


def test_cursors_stay_good_over_a_restart_of_the_server(tmp_path: Path) -> None:
    first = Journal(tmp_path / "j")
    first.append({"MESSAGE": "a"})
    cursor = first.entries[0]["__CURSOR"]
    first.close()
    second = Journal(tmp_path / "j")
    second.append({"MESSAGE": "b"})
    second.close()
    assert texts(second) == ["a", "b"]
    assert texts(second, cursor) == ["b"]


def test_a_line_torn_by_a_kill_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.append({"MESSAGE": "a"})
    journal.close()
    with (tmp_path / "j").open("a") as file:
        file.write('{"MESSAGE": "to')
    torn = Journal(tmp_path / "j")
    torn.append({"MESSAGE": "b"})
    torn.close()
    again = Journal(tmp_path / "j")
    again.close()
    assert texts(again) == ["a", "b"]


@given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line)), st.integers(1, 7))
def test_output_is_the_same_lines_however_it_is_cut_into_reads(lines: list[bytes], size: int) -> None:
    data = b"".join(line + b"\n" for line in lines)
    found: list[bytes] = []
    held = b""
    for start in range(0, len(data), size):
        got, held = split_output(held, data[start : start + size])
        found += got
    assert (found, held) == ([line for line in lines if line.strip()], b"")


def test_a_line_without_end_is_cut_at_48_kilobytes() -> None:
    lines, rest = split_output(b"", b"x" * 100_000)
    assert [len(line) for line in lines] == [49152, 49152]
    assert len(rest) == 100_000 - 2 * 49152


def test_json_gives_bytes_for_what_cannot_be_printed_and_null_for_what_is_too_long() -> None:
    entry = {"A": "plain ü\t", "B": "\x1b[0m", "C": "x" * 4096}
    assert json.loads(as_json(entry)) == {"A": "plain ü\t", "B": [27, 91, 48, 109], "C": None}
    assert json.loads(as_json(entry, everything=True))["C"] == "x" * 4096
