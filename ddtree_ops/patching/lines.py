"""Source text as physical lines, and the marked blocks that our edits leave in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_BREAK = re.compile(r"\r\n|\n|\r")
_OPEN = re.compile(r"^(?P<indent>[ \t]*)# ddtree-ops: (?P<set>[a-z0-9-]+) \{$")
_CLOSE = re.compile(r"^[ \t]*# ddtree-ops: (?P<set>[a-z0-9-]+) \}$")
_WAS = re.compile(r"^[ \t]*# -(?: (?P<line>.*))?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One of our edits in a patched file: lines `first` to `last`, from 1, markers included."""

    set: str
    first: int
    last: int
    was: tuple[str, ...]  # the lines that stood there, without their ends


def split(text: str) -> list[str]:
    """Lines with their ends. Breaks where Python's parser does, and nowhere else."""
    lines, start = [], 0
    for found in _BREAK.finditer(text):
        lines.append(text[start : found.end()])
        start = found.end()
    return [*lines, text[start:]] if start < len(text) else lines


def newline_of(lines: Sequence[str]) -> str:
    """The line end of the first of these lines."""
    found = _BREAK.search(lines[0]) if lines else None
    return found.group() if found else "\n"


def bare(line: str) -> str:
    return line.rstrip("\r\n")


def marked(name: str, indent: str, was: Sequence[str], text: Sequence[str]) -> list[str]:
    """Our lines between markers, the replaced ones kept as comments so that they can be put back.

    `was` and the result carry no line ends; `text` is already indented.
    """
    kept = [f"{indent}# - {line.removeprefix(indent)}" if line else f"{indent}# -" for line in was]
    return [f"{indent}# ddtree-ops: {name} {{", *kept, *text, f"{indent}# ddtree-ops: {name} }}"]


def blocks(text: str) -> tuple[Block, ...]:
    """The marked blocks, in order; a marker without its counterpart is left alone."""
    found: list[Block] = []
    opened: re.Match[str] | None = None
    first = 0
    was: list[str] = []
    for number, line in enumerate(map(bare, split(text)), start=1):
        if start := _OPEN.match(line):
            opened, first, was = start, number, []
        elif opened and (end := _CLOSE.match(line)) and end["set"] == opened["set"]:
            found.append(Block(set=opened["set"], first=first, last=number, was=tuple(was)))
            opened = None
        elif opened and number == first + len(was) + 1 and (kept := _WAS.match(line)):
            was.append(opened["indent"] + kept["line"] if kept["line"] is not None else "")
    return tuple(found)


def unapplied(text: str) -> str:
    """The text as it stood before our edits: each block gives way to the lines that it replaced."""
    lines = split(text)
    newline = newline_of(lines)
    for block in reversed(blocks(text)):
        end = newline_of(lines[block.first - 1 :])
        lines[block.first - 1 : block.last] = [line + end for line in block.was]
    whole = "".join(lines)
    return whole if text.endswith(("\n", "\r")) else whole.removesuffix(newline)
