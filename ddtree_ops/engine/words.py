"""Words of a command line, whatever their flags mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def flag_value(words: Sequence[str], flag: str) -> str | None:
    """The value after a flag, or behind its equals sign; the last one counts, None without the flag."""
    found = None
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == flag:
            found = value if equals else (words[at + 1] if at + 1 < len(words) else "")
    return found


def without_flags(words: Sequence[str], unwanted: Callable[[str], bool]) -> tuple[str, ...]:
    """The words without some flags and the values that stand behind them."""
    kept: list[str] = []
    dropping = False
    for word in words:
        if word.startswith("--"):
            dropping = unwanted(word.partition("=")[0])
        if not dropping:
            kept.append(word)
    return tuple(kept)
