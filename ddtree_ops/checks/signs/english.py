"""Signs of disorder in English, the language of the smoke prompts: words that cannot stand where they stand.

Tokens in the wrong order leave little words side by side that English never joins, capitals inside
sentences, stops before small letters, and ends of words on their own. Each happens in sound texts; several
kinds together, in one text of a few dozen words, do not. Texts in other languages, names, verse and code hold
too few of English's little words to be judged here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ddtree_ops.checks.signs.sign import Sign, Word, words

_KINDS = {
    "article": "the a an my your our their its every",
    "preposition": "of from into with at by for under between",
    "conjunction": "and or but nor",
    "copula": "is are was were",
    "modal": "can could will would shall should must may might",
    "subject": "i he she they we",
}
_KIND = {word: kind for kind, listed in _KINDS.items() for word in listed.split()}
# Pairs that English does not form, whatever the sentence.
_NEVER = frozenset(
    {
        *(("article", kind) for kind in _KINDS),
        *(("copula", kind) for kind in ("copula", "modal")),
        *(("modal", kind) for kind in ("copula", "modal")),
        *(("subject", kind) for kind in ("subject", "article")),
        ("conjunction", "conjunction"),
    }
)
_LEAST_SHARE = 0.15  # of a text's words that must be such words for it to be English prose
_TELLING = {
    "words that never follow each other",
    "a capital inside a sentence",
    "a small letter after a stop",
    "no space after a mark",
}  # the others alone may be names, measures and parameters
_ENOUGH_KINDS = 2  # of disorder
_ENOUGH = 3.5  # places, weighed
_ENOUGH_RATE = 1 / 16  # of the words; sound prose has none of them, or all of one kind

_OPENING_WORDS = """
    The A An It In On He She We They And But If To Of For With By Is Are Was From So As
    What When Where Which Who Why How This That There
"""
_OPENING = frozenset(_OPENING_WORDS.split())
# How English words of four letters and more begin, where they begin with two consonants.
_ONSET_LETTERS = """
    bl br bh ch cl cr cz dj dr dw dh fl fr gh gl gn gr gw kh kl kn kr kv kw ll ly mn ph pl pn pr ps pt rh
    sc sch sf sh sk sl sm sn sp sq sr st sv sw th tr ts tw ty vl wh wr zh zl zw
"""
_ONSETS = frozenset(_ONSET_LETTERS.split())


def english(text: str, _prompt: str | None) -> Iterator[Sign]:
    found = words(text)
    kinds = [_KIND.get(word.text if word.text == "I" else word.text.lower(), "") for word in found]
    known = sum(map(bool, kinds))
    surely = sum(
        word.text.lower() in ("the", "and", "of") for word in found
    )  # "an", "a" and "is" are others' too
    if surely < 2 or known < _LEAST_SHARE * len(found) or not _plain(text) or _quotes_words(text):
        return
    never = list(_never_joined(text, found, kinds))
    yield from _never_sign(text, never, known)
    yield from _disorder_sign(
        {
            "words that never follow each other": (1.5, never),
            "a capital inside a sentence": (1.0, list(_capital_inside(text, found))),
            "a small letter after a stop": (1.0, _starts(_SMALL_AFTER_STOP, text)),
            "a capital inside a word": (0.5, _starts(_HUMP, text)),
            "a space before a mark": (0.5, _starts(_SPACE_BEFORE, text)),
            "no space after a mark": (1.0, _starts(_NO_SPACE, text)),
            "a stop inside a word": (1.0, _starts(_STOP_INSIDE, text)),
            "a digit inside a word": (1.0, _starts(_DIGIT_INSIDE, text)),
            "letters on their own": (1.0, [word.start for word in found if _stray(text, word)]),
            "ends of words on their own": (1.0, [word.start for word in found if _no_onset(word.text)]),
        },
        len(found),
    )


_ENDS = re.compile(r"\s?[.,;!?](?:\s|$)")
_SMALL_AFTER_STOP = re.compile(r"(?<=[a-z]{3})[.?!] [a-z]")
_STOP_INSIDE = re.compile(r"(?<![\w.@/])[A-Za-z]{1,2}\.[a-z]{3,}(?![\w.@/])")
_DIGIT_INSIDE = re.compile(r"\b[a-z]{2,}\d+[a-z]{2,}\b|\b[A-Z]{1,3}\d+[a-z]{2,}\b|\b[a-z]{3,}\d\b")
_HUMP = re.compile(r"(?<=[a-z])[A-Z](?=[a-z])")
_SPACE_BEFORE = re.compile(r"(?<=[A-Za-z0-9]) [,.;:?!](?=\s|$)")
_NO_SPACE = re.compile(r"(?<=[a-z]{2})[,;:?!](?=[A-Za-z])|[,;.][,;]|[,;]\.")


def _starts(pattern: re.Pattern[str], text: str) -> list[int]:
    return [found.start() for found in pattern.finditer(text)]


def _plain(text: str) -> bool:
    """Whether this is prose all through: what identifiers, formulas, paths and markup are made of is rare."""
    return sum(c in "{}[]<>=$\\|_/`*#@&%^~+" for c in text) <= 0.01 * len(text)


def _never_sign(text: str, at: Sequence[int], known: int) -> Iterator[Sign]:
    if not at:
        return
    often = len(at) >= 0.1 * known
    weight = 1.0 if len(at) >= 3 and often else 0.6 if len(at) == 2 and often else 0.35
    near = " ".join(text[at[0] :].split()[:2])
    reason = f"words that never follow each other, such as {near!r}"
    yield Sign(reason=reason, weight=weight, span=(at[0], at[0] + len(near)))


def _disorder_sign(places: dict[str, tuple[float, list[int]]], count: int) -> Iterator[Sign]:
    seen = {kind: (weight * len(at), at) for kind, (weight, at) in places.items() if at}
    score = sum(weighed for weighed, _ in seen.values())
    telling = _TELLING & seen.keys()
    if telling and len(seen) >= _ENOUGH_KINDS and score >= max(_ENOUGH, _ENOUGH_RATE * count):
        first = min(at[0] for _, at in seen.values())
        worst = sorted(seen, key=lambda kind: -seen[kind][0])[:3]
        yield Sign(reason=f"English in disorder: {', '.join(worst)}", weight=1.0, span=(first, first + 1))


def _never_joined(text: str, found: Sequence[Word], kinds: Sequence[str]) -> Iterator[int]:
    for at, (word, kind) in enumerate(zip(found, kinds, strict=True)):
        if not kind or (word.text.isupper() and word.text != "I"):
            continue
        following = found[at + 1] if at + 1 < len(found) else None
        gap = text[word.end : following.start if following else len(text)]
        ends = kind == "article" and word.text != "a" and _ENDS.match(text, word.end)
        joins = following is not None and gap in (" ", "\n") and (kind, kinds[at + 1]) in _NEVER
        if ends or joins:
            yield word.start


def _capital_inside(text: str, found: Sequence[Word]) -> Iterator[int]:
    for before, word in pairwise(found):
        plain = before.text.islower() and text[before.end : word.start] == " "
        if plain and word.text in _OPENING and len(before.text) > 1:
            yield word.start


def _stray(text: str, word: Word) -> bool:
    """A single small letter between spaces, other than the words a, i, o and the names x, y, n, …"""
    around = text[max(0, word.start - 1) : word.start], text[word.end : word.end + 1]
    return word.text in "bcdefghlmqrstuw" and all(c in (" ", "", "\n") for c in around)


def _no_onset(word: str) -> bool:
    """Whether a small word begins as no English word does, but has vowels: "ndidate", "rchest"."""
    if len(word) < 4 or not word.islower() or not re.match(r"[bcdfghjklmnpqrstvwxz]{2}", word):
        return False
    return word[:2] not in _ONSETS and re.search(r"[aeiouy]", word) is not None


def _quotes_words(text: str) -> bool:
    """Whether the text talks about words, which then stand anywhere."""
    return len(re.findall(r"[\"“‘'`](?:the|a|an|of|and|or|is|are|was|by|with)[\"”’'`]", text)) > 1
