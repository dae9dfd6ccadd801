"""ssh_config files as one text, with each `Include` in place: paramiko knows no Include."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from ddtree_ops.model.errors import UsageError

DEEPEST = 16  # OpenSSH's own limit
_WORDS = re.compile(r"\s*([A-Za-z]+)(?:\s*=\s*|\s+)(.+?)\s*$")


def read_ssh_config(path: str | None, *, home: Path | None = None, system: Path = Path("/etc/ssh")) -> str:
    """The given file, which must be there; without one the user's, then the system's."""
    home = home or Path.home()
    if path is not None:
        given = Path(path).expanduser()
        if not given.exists() or given.is_dir():
            raise UsageError(str(given), "no such file, expected an ssh_config", hint="correct ssh_config")
        return _expanded(given, home / ".ssh", home, ())
    own = _expanded(home / ".ssh/config", home / ".ssh", home, ())
    return f"{own}\nHost *\n{_expanded(system / 'ssh_config', system, home, ())}"


def _expanded(path: Path, base: Path, home: Path, above: tuple[Path, ...]) -> str:
    if path in above or len(above) >= DEEPEST:
        raise UsageError(
            str(path), "its Include lines go round in a circle", hint="correct the Include lines"
        )
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UsageError(str(path), f"can't be read: {error.strerror}") from error
    block, text = "Host *", []
    for line in lines:
        keyword, rest = _split(line)
        if keyword in ("host", "match"):
            block = line
        if keyword != "include":
            text.append(line)
            continue
        for included in _files(rest, base, home):
            text.append(_expanded(included, base, home, (*above, path)))
        text.append(block)  # what an included file opened ends with it
    return "\n".join(text)


def _split(line: str) -> tuple[str, str]:
    found = None if line.lstrip().startswith("#") else _WORDS.match(line)
    return (found.group(1).lower(), found.group(2)) if found else ("", "")


def _files(patterns: str, base: Path, home: Path) -> list[Path]:
    """Files that Include's words match; relative ones lie beside the file's own kind."""
    found: list[Path] = []
    for word in shlex.split(patterns):
        path = home / word[2:] if word.startswith("~/") else Path(word)
        path = path if path.is_absolute() else base / path
        found += sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    return [path for path in found if path.is_file()]
