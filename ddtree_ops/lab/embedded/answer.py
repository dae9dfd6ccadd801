"""How a stand-in command hears its options and gives its output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class Answer:
    """Collects or streams what a command prints."""

    def __init__(self, send: Callable[[str, str], None]) -> None:
        self._send = send
        self.reboot = False  # the node restarts once the command has been answered

    def out(self, text: str) -> None:
        self._send("out", text + "\n")

    def err(self, text: str) -> None:
        self._send("err", text + "\n")


@dataclass(frozen=True, slots=True)
class Options:
    """A command line split into words, switches and options with values."""

    words: list[str]
    given: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, argv: list[str], valued: tuple[str, ...]) -> Options:
        """Takes `--name=value`, `--name value`, `-p value` and `-pvalue` for the names in `valued`."""
        words: list[str] = []
        given: list[tuple[str, str]] = []
        rest = iter(argv)
        for word in rest:
            name, equals, value = word.partition("=")
            if word == "--":
                words += rest
            elif word.startswith("--"):
                given.append((name, value if equals or name not in valued else next(rest, "")))
            elif word.startswith("-") and len(word) > 1:
                short = word[:2]
                takes = short in valued
                given.append((short, (word[2:] or next(rest, "")) if takes else word[2:]))
            else:
                words.append(word)
        return cls(words, tuple(given))

    def has(self, *names: str) -> bool:
        return any(name in names for name, _ in self.given)

    def all(self, *names: str) -> list[str]:
        return [value for name, value in self.given if name in names]

    def last(self, *names: str) -> str | None:
        values = self.all(*names)
        return values[-1] if values else None
