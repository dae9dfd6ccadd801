"""Signs in single characters: what no text holds, and one character over and over.

A verify row that was never written has equal logits everywhere, so greedy decoding takes token 0, again and
again; in GPT-style vocabularies that is "!".
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator

from ddtree_ops.checks.signs.sign import Sign

# Not \t, \n, \r, ESC and NEL; form feeds and vertical tabs only where they do not end a line's last word.
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f-\x84\x86-\x9f]|\w[\x0b\x0c](?=[^\n])")
_RUN = re.compile(r"([^\s])\1{7,}")
# How long a run of one character may grow behind a letter where people and programs draw it: rulers, leaders,
# empty fields, closing brackets, blanks to fill in. Quotes and exclamation marks are cut at 8: people tire.
_DRAWN = {
    **dict.fromkeys("-=*#~+─═━_.·…•", 60),
    **dict.fromkeys(",;|\t", 24),
    **dict.fromkeys("()[]{}", 24),
    **dict.fromkeys("░▒▓█■□▪▬", 60),
}
_LETTERS = 24  # "Noooooooooo!" is a word to people
_MARKS = 40  # exclamation marks alone: some languages draw rulers with them
_GLUED = 8
_LINE = 160  # a line's width: rulers, powers of ten, keys and bitmaps


def characters(text: str, _prompt: str | None) -> Iterator[Sign]:
    yield from _replaced(text)
    yield from _control(text)
    yield from _runs(text)
    yield from _dominated(text)


def _replaced(text: str) -> Iterator[Sign]:
    """Bytes that are no UTF-8; at the very end a cut-off answer may have some."""
    body = text.rstrip("\ufffd")
    if count := body.count("\ufffd"):
        at = body.index("\ufffd")
        reason = f"{count} replacement character(s), which stand for bytes that are no text"
        yield Sign(reason=reason, weight=1.0, span=(at, at + 1))


def _control(text: str) -> Iterator[Sign]:
    if found := _CONTROL.search(text):
        yield Sign(reason=f"control character U+{ord(found[0][-1]):04X}", weight=1.0, span=found.span())
    strange = [at for at, c in enumerate(text) if unicodedata.category(c) in ("Co", "Cs")]
    if strange:
        name = f"U+{ord(text[strange[0]]):04X}"
        yield Sign(reason=f"{name} stands for no character", weight=1.0, span=(strange[0], strange[0] + 1))


def _runs(text: str) -> Iterator[Sign]:
    for found in _RUN.finditer(text):
        character, length = found[1], len(found[0])
        if length >= _allowed(character, text, found.start()):
            reason = f"{character!r} {length} times in a row"
            yield Sign(reason=reason, weight=1.0, span=found.span())
            return


def _allowed(character: str, text: str, start: int) -> int:
    """How long a run of this character may be here."""
    alone = start == 0 or not text[start - 1].isalnum()
    if character in _DRAWN:
        return _LINE if alone else _DRAWN[character]
    if character.isdigit() or (character in "AaFf" and _hexadecimal(text, start)):
        return _LINE
    if character in "AaCcGgTtNn" and _genetic(text, start):
        return len(text) + 1
    if character.isalpha():
        return _LINE if _encoded(text, start) else _LETTERS
    if start == 0 or text[start - 1] == "\n" or (alone and character not in "!?"):
        return _MARKS if character in "!?" else _LINE  # a ruler made of something unusual, as in comments
    if unicodedata.category(character) in ("So", "Sm", "Sk"):
        return _LINE  # bars and boxes
    return _GLUED if character in "!?\"'`" else _MARKS


def _hexadecimal(text: str, start: int) -> bool:
    """Whether the run lies in a long hexadecimal number."""
    word = re.match(r"[0-9A-Fa-f]+", text[max(0, start - 2) :].lstrip("x"))
    return word is not None and any(c.isdigit() for c in word[0])


def _genetic(text: str, start: int) -> bool:
    around = text[max(0, start - 20) : start + 60]
    letters = [c for c in around.upper() if c.isalpha()]
    return len(letters) >= 40 and sum(c in "ACGTUN" for c in letters) > 0.9 * len(letters)


def _encoded(text: str, start: int) -> bool:
    """Whether the run lies in base64, where zero bytes are a row of A's."""
    word = re.search(r"[A-Za-z0-9+/=_-]+$", text[max(0, start - 200) : start])
    return word is not None and len(word[0]) >= 12 and any(c.isdigit() for c in word[0])


def _dominated(text: str) -> Iterator[Sign]:
    """A text that is little else than one character."""
    solid = [c for c in text if not c.isspace()]
    if len(solid) < (16 if any(c.isalnum() for c in solid) else 6):
        return
    character, count = Counter(solid).most_common(1)[0]
    share = count / len(solid)
    if character.isalpha() and count < _LETTERS:
        return
    if set(solid) <= set("0123456789abcdefABCDEFxX,") or re.fullmatch(
        r"A+[A-Za-z0-9+/]{24,}=*", text.strip()
    ):
        return  # a table of numbers; zero bytes in base64
    if character.isascii() and share >= (0.9 if character.isdigit() or character in _DRAWN else 0.7):
        reason = f"{share:.0%} of the text is {character!r}"
        yield Sign(reason=reason, weight=1.0, span=(0, len(text)))
