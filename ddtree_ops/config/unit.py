"""systemd unit files: reading a hand-written one, quoting words of a rendered one."""

from __future__ import annotations

from dataclasses import dataclass

from ddtree_ops.model.errors import UsageError

ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "s": " ", "\\": "\\", '"': '"', "'": "'"}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFile:
    """The settings of a unit file in order: (section, key, value), continuation lines joined."""

    settings: tuple[tuple[str, str, str], ...]

    def values(self, section: str, key: str) -> tuple[str, ...]:
        """Every value of the key since it was last reset by an empty assignment."""
        found: list[str] = []
        for its_section, its_key, value in self.settings:
            if (its_section, its_key) == (section, key):
                found = [*found, value] if value else []
        return tuple(found)

    def value(self, section: str, key: str) -> str | None:
        values = self.values(section, key)
        return values[-1] if values else None


def parse_unit(text: str) -> UnitFile:
    """Reads a unit file after systemd.syntax(7); lines of no meaning there are dropped."""
    settings: list[tuple[str, str, str]] = []
    section = ""
    for line in _joined(text):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line:
            key, value = line.split("=", 1)
            settings.append((section, key.strip(), value.strip()))
    return UnitFile(settings=tuple(settings))


def split_words(value: str) -> tuple[str, ...]:
    """Splits a command line after systemd.service(5); raises UsageError at an open quote.

    `$` and `%` stay as they are: systemd expands them later, in what we render as in what we read.
    """
    words: list[str] = []
    word, quote, started = "", "", False
    characters = iter(value)
    for character in characters:
        if character == "\\":
            follower = next(characters, "")
            word, started = word + ESCAPES.get(follower, "\\" + follower), True
        elif quote:
            quote, word = ("", word) if character == quote else (quote, word + character)
        elif character in "\"'":
            quote, started = character, True
        elif character.isspace():
            words, word, started = ([*words, word] if started else words), "", False
        else:
            word, started = word + character, True
    if quote:
        raise UsageError("unit", f"got an open {quote} in {value!r}, expected closed quotes")
    return tuple([*words, word] if started else words)


def quote_word(word: str) -> str:
    """One word of ExecStart= or Environment=, such that `split_words` reads back exactly `word`."""
    if word and all(character.isalnum() or character in "-_./:=,+@%${}" for character in word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def _joined(text: str) -> list[str]:
    lines: list[str] = []
    pending = ""
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith(("#", ";")) or (not line and not pending):
            continue
        if line.endswith("\\"):
            pending += line[:-1].rstrip() + " "
            continue
        lines.append((pending + line).strip())
        pending = ""
    return [*lines, pending.strip()] if pending.strip() else lines
