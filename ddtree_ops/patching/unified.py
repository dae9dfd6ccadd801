"""Operators' own unified diffs: read, and applied exactly where they say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddtree_ops.model.errors import Refused, UsageError
from ddtree_ops.patching.lines import bare, newline_of, split

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_END = "\\ No newline at end of file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    line: int  # of the diff, from 1
    start: int  # of the old text, from 1
    old: tuple[str, ...]
    new: tuple[str, ...]
    open_end: bool = False  # the new text's last line has no line end


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDiff:
    path: str
    creates: bool
    hunks: tuple[Hunk, ...]


def parse(name: str, text: str) -> tuple[FileDiff, ...]:
    """The diff's files; `a/`, `b/` and a leading `python/` (SGLang's repository) are dropped."""
    lines = [bare(line) for line in split(text)]
    found = []
    at = 0
    while at < len(lines):
        if lines[at].startswith("--- ") and "".join(lines[at + 1 : at + 2]).startswith("+++ "):
            hunks, after = _hunks(name, lines, at + 2)
            found.append(_file(name, at + 1, lines[at], lines[at + 1], hunks))
            at = after
        elif lines[at].startswith(("rename ", "copy ", "GIT binary patch", "Binary files ")):
            raise UsageError(f"{name}:{at + 1}", f"got {lines[at]!r}, expected text changes alone")
        else:
            at += 1
    if not found:
        raise UsageError(name, "got no file headers (---, +++), expected a unified diff")
    return tuple(found)


def applied(name: str, diff: FileDiff, text: str | None) -> str:
    """The text with every hunk in it; context that differs by a character is a refusal."""
    if diff.creates != (text is None):
        there = "no such file" if text is None else "a file that exists"
        raise Refused(
            f"{name}: {diff.path}", f"got {there}, expected {'a new one' if diff.creates else 'one'}"
        )
    lines = split(text or "")
    newline = newline_of(lines)
    for hunk in reversed(diff.hunks):
        start = hunk.start - 1 if hunk.old else hunk.start
        _check(name, diff.path, hunk, [bare(line) for line in lines], start)
        lines[start : start + len(hunk.old)] = [line + newline for line in hunk.new]
        if hunk.open_end and lines:
            lines[-1] = bare(lines[-1])
    return "".join(lines)


def _check(name: str, path: str, hunk: Hunk, lines: Sequence[str], start: int) -> None:
    for offset, expected in enumerate(hunk.old):
        number = start + offset
        got = lines[number] if number < len(lines) else "the end of the file"
        if got != expected:
            raise Refused(
                f"{name}:{hunk.line}: {path}:{number + 1}",
                f"got {got.strip()!r}, expected {expected.strip()!r} (hunks are applied with no fuzz)",
                hint="make the diff against this sglang release",
            )


def _file(name: str, number: int, old: str, new: str, hunks: tuple[Hunk, ...]) -> FileDiff:
    source, target = (line[4:].split("\t")[0].strip() for line in (old, new))
    if target == "/dev/null":
        raise UsageError(f"{name}:{number}", "got a diff that deletes a file, expected changes alone")
    path = target.removeprefix("b/").removeprefix("python/")
    return FileDiff(path=path, creates=source == "/dev/null", hunks=hunks)


def _hunks(name: str, lines: Sequence[str], at: int) -> tuple[tuple[Hunk, ...], int]:
    found = []
    while at < len(lines) and (head := _HUNK.match(lines[at])):
        count_old, count_new = (int(head[group] or 1) for group in (2, 4))
        body = list(_body(lines, at + 1, count_old, count_new))
        old = tuple(line[1:] for line in body if line[:1] in (" ", "-"))
        new = tuple(line[1:] for line in body if line[:1] in (" ", "+"))
        if (len(old), len(new)) != (count_old, count_new):
            raise UsageError(
                f"{name}:{at + 1}", f"got {len(old)} and {len(new)} lines, expected {lines[at]!r}"
            )
        end = at + 1 + len(body)
        marks = [number for number in range(at + 1, end) if lines[number].startswith(_NO_END[:2])]
        open_end = any(lines[number - 1][:1] in (" ", "+") for number in marks)
        found.append(Hunk(line=at + 1, start=int(head[1]), old=old, new=new, open_end=open_end))
        at = end
    if not found:
        raise UsageError(f"{name}:{at}", "got a file header without hunks, expected @@ lines")
    return tuple(found), at


def _body(lines: Sequence[str], at: int, old: int, new: int) -> Iterator[str]:
    """The hunk's lines until both counts are met, and the note about a missing line end after them."""
    while at < len(lines) and (old > 0 or new > 0 or lines[at].startswith(_NO_END[:2])):
        line = lines[at] or " "
        old -= line[0] in " -"
        new -= line[0] in " +"
        yield line
        at += 1
