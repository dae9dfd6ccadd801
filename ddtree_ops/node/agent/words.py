"""An engine's command line: its words as they run, and the secrets among them, which are shown nowhere.

A secret belongs into the unit's EnvironmentFile= and is named on its command line as ${NAME}; systemd
puts its value into the process's words, and SGLang prints its arguments when it starts.
"""

from __future__ import annotations

import re
import shlex
from typing import Iterable

from .base import Json
from .files import read_text

SECRET_FLAGS = ("--api-key", "--admin-api-key", "--ssl-keyfile-password")
HIDDEN = "***"
_NAMED = re.compile(r"\$\{(\w+)\}|\$(\w+)$")


def unit_words(unit: Json) -> list[str]:
    """The words of the running process; else those that systemd shows, with its environment files' values."""
    pid = unit.get("MainPID") or "0"
    if pid.isdigit() and pid != "0":
        text = read_text(f"/proc/{pid}/cmdline")
        if text:
            return text.split("\0")[:-1]
    words = argv_shown(unit.get("ExecStart") or "")
    if not any(_NAMED.search(word) for word in words):
        return words
    values = _file_values(unit.get("EnvironmentFiles") or "")
    return [_NAMED.sub(lambda found: values.get(found[1] or found[2], found[0]), word) for word in words]


def argv_shown(exec_start: str) -> list[str]:
    """The words after `argv[]=` of `systemctl show`'s ExecStart."""
    _, found, rest = exec_start.partition("argv[]=")
    if not found:
        return []
    words = rest.split(" ; ")[0].strip()
    try:
        return shlex.split(words)
    except ValueError:
        return words.split()


def secret_words(words: list[str]) -> dict[str, str]:
    """Flag → value of each secret on a command line."""
    found = {}
    for word, following in zip(words, [*words[1:], ""]):
        flag, equals, value = word.partition("=")
        if flag in SECRET_FLAGS:
            found[flag] = value if equals else following
    return {flag: value for flag, value in found.items() if value}


def engine_key(unit: Json) -> str:
    """What an engine wants as a bearer token; "" where it wants none."""
    return secret_words(unit_words(unit)).get("--api-key", "")


def without_secrets(words: list[str]) -> list[str]:
    """The words with a mark in place of each secret."""
    secrets = secret_words(words).values()
    return [hide(word, secrets) for word in words]


def hide(text: str, secrets: Iterable[str]) -> str:
    """The text with a mark wherever one of these values stands in it."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text


def _file_values(shown: str) -> dict[str, str]:
    """The variables of the files that `systemctl show` lists, each as path and (ignore_errors=…)."""
    values = {}
    for line in shown.splitlines():
        for row in read_text(line.rpartition(" (")[0] or line).splitlines():
            name, equals, value = row.strip().partition("=")
            if equals and not name.startswith(("#", ";")):
                value = value.strip()
                quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
                values[name.strip()] = value[1:-1] if quoted else value
    return values
