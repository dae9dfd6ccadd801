"""Signs of repetition: the same words over and over, as in decoding that no longer sees its context."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddtree_ops.checks.signs.sign import Sign, Word, coded, words

# A refrain comes back, but not many times in direct succession; children's songs reach four.
_WORD_REPEATS = 7  # one word: "merrily, merrily, merrily, merrily" and "Buffalo buffalo …" are texts
_SHORT_REPEATS = 14  # of up to three letters: laughter, scat, "la la la"
_PHRASE_REPEATS = 5  # two words and more
_LINE_REPEATS = 4  # whole lines of at least three words
_PIECE = re.compile(r"(.{2,80}?)\1{4,}", re.DOTALL)
_PIECE_SPAN = 60  # characters that a repeated piece must cover, where there are no words to count
_WINDOW = 4  # words a gram


def loops(text: str, _prompt: str | None) -> Iterator[Sign]:
    yield from _word_loop(text)
    yield from _piece_loop(text)
    yield from _line_loop(text)
    yield from _poor(text)


def _word_loop(text: str) -> Iterator[Sign]:
    """A word or phrase repeated in direct succession, with the same punctuation."""
    found = tuple(word for word in words(text) if not _in_number(text, word))
    if not _prose(text, found):
        return
    tokens = _with_gaps(text, found)
    for size in range(1, 13):
        run = _longest_run(tokens, size)
        if run is None:
            continue
        start, repeats = run
        span = (found[start].start, found[start + size * repeats - 1].end)
        unit = [word.text for word in found[start : start + size]]
        if repeats >= _needed(unit) * _patience(text[span[0] : span[1]]):
            phrase = " ".join(unit)
            yield Sign(reason=f"{phrase!r} {repeats} times in a row", weight=1.0, span=span)
            return


def _with_gaps(text: str, found: tuple[Word, ...]) -> list[tuple[str, str]]:
    """Each word with what stands between it and the one before, spaces aside."""
    ends = [0, *(word.end for word in found)]
    return [
        (word.text, "".join(text[end : word.start].split())) for word, end in zip(found, ends, strict=False)
    ]


def _in_number(text: str, word: Word) -> bool:
    before, after = text[max(0, word.start - 1) : word.start], text[word.end : word.end + 1]
    return before.isdigit() or after.isdigit()


def _prose(text: str, found: tuple[Word, ...]) -> bool:
    """Whether words carry the text; tables and literals repeat theirs for good reasons."""
    letters = sum(len(word.text) for word in found)
    solid = sum(not c.isspace() for c in text)
    return letters > 0.6 * solid


def _patience(text: str) -> int:
    """How many times longer code may repeat itself: unrolled loops, tables of types."""
    return 4 if re.search(r"[{}\[\]<>=;$\\|_&*:#@/]", text) else 1


def _needed(unit: list[str]) -> int:
    if len(unit) > 1:
        return _PHRASE_REPEATS if len(set(unit)) > 1 else 10**9
    return _SHORT_REPEATS if len(unit[0]) <= 3 else _WORD_REPEATS


def _longest_run(tokens: list[tuple[str, str]], size: int) -> tuple[int, int] | None:
    """(first word, repeats) of the longest immediate repetition of `size` words."""
    best: tuple[int, int] | None = None
    at = 1  # the gap before the first word is no part of a repetition
    while at + size < len(tokens):
        same = 0
        while at + size + same < len(tokens) and tokens[at + same] == tokens[at + size + same]:
            same += 1
        repeats = 1 + same // size
        if repeats > 1 and (best is None or repeats > best[1]):
            best = (at, repeats)
        at += max(1, same)
    return best


def _piece_loop(text: str) -> Iterator[Sign]:
    """A piece of text repeated without a gap, in scripts without spaces and in words glued together."""
    for found in _PIECE.finditer(text):
        unit, length = found[1], len(found[0])
        letters = sum(c.isalpha() for c in unit)
        span = _PIECE_SPAN if len(unit) < 3 or not unit.isalpha() else _PIECE_SPAN // 2
        if length < span or letters < 2 or letters < 0.5 * len(unit.strip()):
            continue
        if len(set(unit.strip().casefold())) < 2 or _drawn(text, found.start(), found.end()):
            continue
        repeats = length // len(unit)
        if repeats >= (12 if len(unit.strip()) <= 3 else 5) * _patience(found[0]):
            reason = f"{unit.strip()!r} {repeats} times in a row"
            yield Sign(reason=reason, weight=1.0, span=found.span())
            return


def _drawn(text: str, start: int, end: int) -> bool:
    """Whether the repetition belongs to a literal: hex dumps, markup, encoded data."""
    piece = text[start:end]
    return bool(re.search(r"[<>{}\[\]\\|=:&*]|[0-9]", piece))


def _line_loop(text: str) -> Iterator[Sign]:
    """The same line again and again, at once or with one other line between."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for step in (1, 2):
        repeats = 1
        for before, line in zip(lines, lines[step:], strict=False):
            long_enough = len(words(line)) >= 3 and not re.search(r"\d", line)
            repeats = repeats + 1 if before == line and long_enough else 1
            if repeats >= _LINE_REPEATS * step * _patience(text):
                at = text.index(line)
                reason = f"the line {line[:40]!r} comes again and again"
                yield Sign(reason=reason, weight=1.0, span=(at, len(text)))
                return


def _poor(text: str) -> Iterator[Sign]:
    """Hardly any sequence of four words that is new; songs keep above a third, loops fall to a tenth."""
    found = [word.text.casefold() for word in words(text)]
    if len(found) < 48 or coded(text) or not _prose(text, words(text)):
        return
    grams = [tuple(found[at : at + _WINDOW]) for at in range(len(found) - _WINDOW + 1)]
    share = len(set(grams)) / len(grams)
    if share < 0.3:
        reason = f"only {share:.0%} of its four-word sequences are new"
        yield Sign(reason=reason, weight=1.0, span=(0, len(text)))
