"""What a sign is, and the words and scripts that the families of signs look at."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """One thing wrong with a text; weights add up, and 1.0 is enough to call it garbled."""

    reason: str
    weight: float
    span: tuple[int, int]  # characters of the text, end exclusive


@dataclass(frozen=True, slots=True)
class Word:
    """A longest run of letters and combining marks, with apostrophes between them."""

    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


# `\w` has neither the combining vowel signs of Indic scripts nor the joiners of Persian.
_MARKS = r"\u0300-\u036f\u0900-\u0dff\u0e31-\u0e4e\u1000-\u109f\u17b4-\u17d3\u200c\u200d"
_WORD = re.compile(rf"(?:[^\W\d_]|[{_MARKS}])+(?:['’ʼʻ](?:[^\W\d_])+)*")


@lru_cache(maxsize=16)
def words(text: str) -> tuple[Word, ...]:
    """The words of a text in order; digits, punctuation and spaces are none."""
    return tuple(Word(found[0], found.start()) for found in _WORD.finditer(text))


# Scripts that are written together as a matter of course count as one; what is none of these is no letter.
_FAMILY = dict.fromkeys(("CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO", "HANGUL"), "CJK") | {
    name: name
    for name in (
        *("LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "GEORGIAN", "HEBREW", "ARABIC", "DEVANAGARI", "BENGALI"),
        *(
            "GURMUKHI",
            "GUJARATI",
            "ORIYA",
            "TAMIL",
            "TELUGU",
            "KANNADA",
            "MALAYALAM",
            "SINHALA",
            "THAI",
            "LAO",
        ),
        *("TIBETAN", "MYANMAR", "KHMER", "ETHIOPIC", "MONGOLIAN", "CHEROKEE"),
    )
}
# Scripts that take in no word of another without a space. In the rest Latin words do stand so: before
# particles and suffixes, or because there are no spaces at all.
NEVER_GLUED = frozenset(
    {"LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "GEORGIAN", "HEBREW", "ARABIC", "ETHIOPIC"}
)


@lru_cache(maxsize=4096)
def script(character: str) -> str:
    """The script of a letter, by the first word of its Unicode name; "" for what is no letter."""
    if not character.isalpha():
        return ""
    return _FAMILY.get(unicodedata.name(character, "").split(" ", 1)[0], "")


def scripts(text: str) -> Iterator[tuple[str, int, int]]:
    """The longest stretches of letters of one script, as (script, start, end); what is no letter ends one."""
    start, current = 0, ""
    for at, character in enumerate(text):
        if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Mc", "Cf", "Lm"):
            continue  # marks, joiners and modifier letters belong to what they stand on
        here = script(character)
        if here != current:
            if current:
                yield current, start, at
            start, current = at, here
    if current:
        yield current, start, len(text)


def coded(text: str) -> bool:
    """Whether code, markup or data makes up a good part of the text."""
    marks = sum(c in '{}[]()<>=;$\\|_/`"' for c in text)
    return marks > 0.04 * max(1, len(text))
