"""Signs of the conversation itself in the answer: turn markers, role names, pieces of the prompt.

A broken mask lets tokens attend to the wrong positions, and what stands there is the template and the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddtree_ops.checks.signs.sign import Sign, Word, words

_MARKER = re.compile(
    r"<\|[a-z_]{3,20}\|>|\[/?INST\]|<</?SYS>>|</?(?:start|end)_of_turn>|<｜[^｜]{2,30}｜>", re.IGNORECASE
)
_QUOTES = ('"', "'", "`")  # a text about templates quotes them
_ROLE_END = re.compile(r"(?P<glue>[^\W\d_]{0,30})(?P<role>user|assistant|system)\n", re.ASCII)
# English words that end like a role, and may end a line.
# What is before "user" in the English words that end so, and may end a line.
_USERS = re.compile(
    r"super|end|multi|power|sub|non|co|ab|acc|am|bem|caro|ca|conf|def|diff|espo|exc|f|gro|ho|inf|mo|m|perf|per|"
    r"pa|ref|re|ro|tro|transf|suff|eff"
)
_INTRODUCTION = """
    here here's heres is are was a an the this that these your my our sure certainly of course okay ok
    absolutely below i i've i'd we for you as requested and with in to it on about great yes write
    wrote written
"""
_INTRODUCING = frozenset(_INTRODUCTION.split())
_GRAM = 3  # words that must agree in a row to count as taken from the prompt


def echo(text: str, prompt: str | None) -> Iterator[Sign]:
    yield from _markers(text)
    yield from _roles(text)
    yield from _restarts(text)
    if prompt:
        yield from _prompt_fragments(text, prompt)
        yield from _prompt_glued(text, prompt)


def _markers(text: str) -> Iterator[Sign]:
    found = [each for each in _MARKER.finditer(text) if not text[: each.start()].endswith(_QUOTES)]
    if found:
        first = found[0]
        glued = text[: first.start()][-1:].isalpha() or _ROLE_END.match(text, first.end()) is not None
        reason = f"the chat template's marker {first[0]!r}"
        yield Sign(reason=reason, weight=1.0 if glued or len(found) > 1 else 0.6, span=first.span())


def _roles(text: str) -> Iterator[Sign]:
    """Role names where a line ends, as they stand once the markers around them are skipped."""
    weighed = [(_role_weight(text, found), found) for found in _ROLE_END.finditer(text)]
    weight, found = max(weighed, key=lambda pair: pair[0], default=(0.0, None))
    if found is not None and weight:
        reason = f"a turn of the conversation inside the answer: {found[0].strip()!r}"
        yield Sign(reason=reason, weight=weight, span=found.span())


def _role_weight(text: str, found: re.Match[str]) -> float:
    before = text[: found.start()]
    if before.endswith("-"):
        return 0.0  # part of a longer name
    if found["glue"]:
        is_word = found["role"] == "system" or (
            _USERS.fullmatch(found["glue"]) and not before.endswith(("'", "’"))
        )
        return 0.0 if is_word else 1.0
    if before.endswith((".", ",", "!", "?", ";")):
        return 1.0  # behind a sentence, without a space
    line = before.rsplit("\n", 1)[-1]
    if line.strip():
        return 0.0  # "… by the user" may end a line
    if _ROLE_END.match(text, found.end()) or (found["role"] == "assistant" and not line):
        return 1.0
    return 1.0 if _breaks_off(before.rstrip(), text[found.end() :].lstrip()) else 0.6


def _breaks_off(before: str, after: str) -> bool:
    """Whether a sentence stops for the role; lists of roles are introduced, or stand among the like."""
    if not after or before.endswith((":", ".")):
        return False
    around = before.rsplit("\n", 1)[-1], after.split("\n", 1)[0]
    return any(len(words(line)) >= 4 for line in around)


def _restarts(text: str) -> Iterator[Sign]:
    """The answer's first line once more further down: poems do so on purpose, so it counts little."""
    first = text.strip().split("\n", 1)[0].strip()
    if len(words(first)) < 4 or first.startswith(("#", "//", "|", "-")):
        return
    again = text.count(first) - 1
    if again:
        at = text.index(first, text.index(first) + 1)
        weight = 0.4 if again == 1 else 0.7
        yield Sign(reason=f"it starts over: {first[:40]!r}", weight=weight, span=(at, at + len(first)))


def _prompt_fragments(text: str, prompt: str) -> Iterator[Sign]:
    """How much of the answer is the prompt's own wording."""
    said, asked = words(text), [word.text.casefold() for word in words(prompt)]
    taken = _taken(said, asked)
    if sum(taken) < _GRAM:
        return
    own = [word.text.casefold() for word, is_taken in zip(said, taken, strict=True) if not is_taken]
    at = taken.index(True)
    span = (said[at].start, said[len(said) - 1 - taken[::-1].index(True)].end)
    if _whole_prompt(said, asked):
        weight = 1.0 if len(own) <= sum(taken) else 0.6
        yield Sign(reason="it repeats its prompt word for word", weight=weight, span=span)
    elif taken[-1] and len(own) <= _GRAM and not text.rstrip().endswith((".", "!", "?")):
        # "Paris is the capital of France." ends in the question's words too, but it ends.
        strange = sum(word not in _INTRODUCING for word in own)
        if strange:
            weight = 1.0 if strange > 1 else 0.6
            yield Sign(reason="little but a fragment of its prompt", weight=weight, span=span)


def _taken(said: tuple[Word, ...], asked: list[str]) -> list[bool]:
    """For each word of the answer, whether it stands in a gram that the prompt holds too."""
    grams = {tuple(asked[at : at + _GRAM]) for at in range(len(asked) - _GRAM + 1)}
    folded = [word.text.casefold() for word in said]
    taken = [False] * len(said)
    for at in range(len(said) - _GRAM + 1):
        if tuple(folded[at : at + _GRAM]) in grams:
            taken[at : at + _GRAM] = [True] * _GRAM
    return taken


def _whole_prompt(said: tuple[Word, ...], asked: list[str]) -> bool:
    folded = " ".join(word.text.casefold() for word in said)
    return 5 <= len(asked) <= 40 and " ".join(asked) in folded


def _prompt_glued(text: str, prompt: str) -> Iterator[Sign]:
    """Two words of the prompt in one word: "aboutocean", "oceanWrite…"."""
    asked = {word.text.casefold() for word in words(prompt)}
    parts = {word for word in asked if len(word) >= 4}
    humped = [word for word in words(text) if _humped(word.text, parts)]
    joined = [word for word in words(text) if _joined(word.text.casefold(), parts) and word.text not in asked]
    if humped or joined:
        first = (humped or joined)[0]
        # "lighthouse" may well answer a question about a light and a house.
        weight = 1.0 if humped or len({word.text for word in joined}) > 1 else 0.6
        reason = f"words of the prompt glued together: {first.text!r}"
        yield Sign(reason=reason, weight=weight, span=(first.start, first.end))


def _joined(word: str, parts: set[str]) -> bool:
    return any(word[:at] in parts and word[at:] in parts for at in range(4, len(word) - 3))


def _humped(word: str, parts: set[str]) -> bool:
    """Whether a capital inside the word begins one word of the prompt, behind another: "poemownersWrite"."""
    for found in re.finditer(r"(?<=[a-z])[A-Z]", word):
        before, after = word[: found.start()].casefold(), word[found.start() :].casefold()
        right = {part for part in parts if after.startswith(part)}
        if right and any(part in before for part in parts - right):
            return True
    return False
