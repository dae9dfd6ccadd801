"""Signs of mixture: scripts and words that run into each other.

Tokens drawn from the whole vocabulary bring scripts together that no text mixes, and drop the spaces between
words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from ddtree_ops.checks.signs.sign import NEVER_GLUED, Sign, coded, scripts

_HUMP = re.compile(r"[A-Za-z]*[a-z]{9,}[A-Z][a-z][A-Za-z]*")
_LATIN_SENTENCE = re.compile(r"(?:[a-z]{2,} ){2}[a-z]{2,}")
_TIGHT = re.compile(r"[^\W\d_]{2}[,;!?][^\W\d_]{2}")  # no space after the mark
_STOP_TIGHT = re.compile(r"(?:^|\s)[A-Z][a-z]+\.[a-z](?![\w.])")  # "The.r"


def mixture(text: str, _prompt: str | None) -> Iterator[Sign]:
    yield from _mixed_words(text)
    yield from _soup(text)
    yield from _glued(text)
    yield from _tight(text)


def _mixed_words(text: str) -> Iterator[Sign]:
    """Alphabets that meet inside one word."""
    latin = _LATIN_SENTENCE.search(text) is not None and _share(text, "CJK") < 0.2
    met = [
        (left[1], right[2], {left[0], right[0]})
        for left, right in pairwise(scripts(text))
        if left[2] == right[1] and _clash(left, right, latin)
    ]
    if met:
        start, end, names = met[0]
        # Cyrillic and Greek do take in a Latin name and inflect it; other alphabets do not.
        weight = 0.6 if len(met) == 1 and names & {"CYRILLIC", "GREEK", "CJK"} else 1.0
        reason = f"scripts that meet inside a word, such as {text[start:end][:40]!r}"
        yield Sign(reason=reason, weight=weight, span=(start, end))


def _share(text: str, wanted: str) -> float:
    """What part of the letters is of this script."""
    counts: Counter[str] = Counter()
    for name, start, end in scripts(text):
        counts[name] += end - start
    return counts[wanted] / max(1, counts.total())


def _clash(left: tuple[str, int, int], right: tuple[str, int, int], latin: bool) -> bool:
    """Whether no writer lets these two stretches touch; `latin` when they stand in a Latin sentence."""
    if min(left[2] - left[1], right[2] - right[1]) == 1 and {left[0], right[0]} <= NEVER_GLUED:
        return False  # Δx, β-carotene, an accented letter borrowed
    if {left[0], right[0]} == {"LATIN", "CJK"}:
        return latin  # SYNを is Japanese; "the海" in English is not
    return {left[0], right[0]} <= NEVER_GLUED or "LATIN" not in (left[0], right[0])


def _soup(text: str) -> Iterator[Sign]:
    """Several scripts, each a word or two, side by side with nothing between them but spaces."""
    stretches = list(scripts(text))
    jumps = []
    for (left, _, end), (right, start, stop) in pairwise(stretches):
        gap = text[end:start]
        if left != right and gap.strip() == "" and len(gap) <= 2 and "LATIN" not in (left, right):
            jumps.append((end, stop))
    kinds = {name for name, _, _ in stretches} - {"LATIN"}
    if len(kinds) >= 2 and jumps:
        reason = f"{len(kinds)} scripts with nothing between them"
        weight = 1.0 if len(kinds) >= 3 or len(jumps) >= 2 else 0.6
        yield Sign(reason=reason, weight=weight, span=jumps[0])
    elif (bare := _bare_foreign(text, stretches)) >= 3:
        reason = f"{bare} foreign words dropped into the text"
        yield Sign(reason=reason, weight=1.0, span=(0, len(text)))


def _bare_foreign(text: str, stretches: list[tuple[str, int, int]]) -> int:
    """Words of other scripts inside a Latin sentence that no quote, bracket, comma or verb introduces.

    Counts only those with a lower-case Latin word on both sides, one space away, and of at least two scripts.
    """
    bare = [
        name
        for name, start, end in stretches
        if name not in ("LATIN", "GREEK")
        and re.search(r"[a-z] $", text[max(0, start - 2) : start])
        and re.match(r" [a-z]", text[end : end + 2])
    ]
    return len(bare) if len(set(bare)) >= 2 else 0


def _glued(text: str) -> Iterator[Sign]:
    """An answer that is one long word with a capital inside."""
    if len(text) < 200 and _HUMP.fullmatch(text.strip()):
        yield Sign(reason=f"words glued together: {text.strip()[:60]!r}", weight=1.0, span=(0, len(text)))


def _tight(text: str) -> Iterator[Sign]:
    """Punctuation without the space that should follow it, as a habit of the text."""
    if coded(text):
        return
    tight = [found.span() for found in _TIGHT.finditer(text) if found[0].isascii()]
    spaced = len(re.findall(r"[,;!?]\s", text))
    if len(tight) >= 3 and len(tight) > spaced:
        reason = f"{len(tight)} punctuation marks with no space after them"
        yield Sign(reason=reason, weight=0.6, span=tight[0])
    if found := _STOP_TIGHT.search(text):
        reason = f"a stray letter behind a full stop: {found[0].strip()!r}"
        yield Sign(reason=reason, weight=0.4, span=found.span())
