"""Unit files as systemd reads them (systemd.syntax(7)): sections, words, time spans, and what is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path

_SPANS = {
    1e-6: "usec us",
    1e-3: "msec ms",
    1.0: "seconds second sec s",
    60.0: "minutes minute min m",
    3600.0: "hours hour hr h",
    86400.0: "days day d",
    604800.0: "weeks week w",
}
_UNITS = {"": 1.0} | {word: size for size, words in _SPANS.items() for word in words.split()}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "s": " "}
_CHOICES = {
    ("Service", "Type"): ("service type", {"simple", "exec", "oneshot", "forking", "notify", "idle", "dbus"}),
    ("Service", "Restart"): (
        "service restart specifier",
        {"no", "always", "on-success", "on-failure", "on-abnormal", "on-abort", "on-watchdog"},
    ),
    ("Service", "KillMode"): ("kill mode specification", {"control-group", "mixed", "process", "none"}),
}
INFINITY = float("inf")
_PIECE = re.compile(r"\\x[0-9a-fA-F]{2}|\\[0-7]{3}|\\.|.", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One assignment, with where it stands."""

    section: str
    key: str
    value: str
    path: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """Something that systemd would say of a unit file; fatal ones keep the unit from starting."""

    text: str
    fatal: bool = False


@dataclass(slots=True, kw_only=True)
class UnitFile:
    """A unit's assignments in order, drop-ins after the file itself."""

    name: str
    path: Path | None = None
    drop_ins: tuple[Path, ...] = ()
    lines: list[Line] = field(default_factory=list)
    complaints: list[Complaint] = field(default_factory=list)
    mtime: float = 0.0

    def all(self, section: str, key: str) -> list[str]:
        """Every value of a list-like key; an empty assignment forgets those before it."""
        values: list[str] = []
        for line in self.lines:
            if (line.section, line.key) == (section, key):
                values = [*values, line.value] if line.value else []
        return values

    def get(self, section: str, key: str, default: str = "") -> str:
        """The last value of a key that takes one."""
        values = self.all(section, key)
        return values[-1] if values else default

    def words(self, section: str, key: str) -> list[str]:
        return [word for value in self.all(section, key) for word in value.split()]

    def span(self, section: str, key: str, default: float) -> float:
        """Seconds of a time span; the default where it is absent or unreadable."""
        parsed = seconds(self.get(section, key))
        return default if parsed is None else parsed

    @property
    def fatal(self) -> bool:
        return any(complaint.fatal for complaint in self.complaints)


def read_unit(name: str, directory: Path) -> UnitFile:
    """The unit of that name with its drop-ins; `path` is None when there is no such file."""
    path = directory / name
    unit = UnitFile(name=name)
    if not path.is_file():
        return unit
    unit.path, unit.mtime = path, path.stat().st_mtime
    unit.drop_ins = tuple(sorted((directory / f"{name}.d").glob("*.conf")))
    for part in (path, *unit.drop_ins):
        lines, complaints = parse(part.read_text(errors="replace"), str(part))
        unit.lines += lines
        unit.complaints += complaints
    unit.complaints += _whole_unit(unit)
    return unit


def parse(text: str, path: str) -> tuple[list[Line], list[Complaint]]:
    """The assignments of one file, and what is wrong line by line."""
    lines: list[Line] = []
    complaints: list[Complaint] = []
    section = ""
    for number, line in _logical_lines(text):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            if section not in known_keys() and not section.startswith("X-"):
                complaints.append(Complaint(text=f"{path}:{number}: Unknown section '{section}'. Ignoring."))
            continue
        key, equals, value = line.partition("=")
        if not equals:
            complaints.append(Complaint(text=f"{path}:{number}: Missing '=', ignoring line."))
            continue
        entry = Line(section=section, key=key.strip(), value=value.strip(), path=path, number=number)
        problem = _problem(entry)
        if problem:
            complaints.append(Complaint(text=f"{path}:{number}: {problem.text}", fatal=problem.fatal))
        elif section in known_keys():
            lines.append(entry)
    return lines, complaints


def split_words(text: str) -> list[str] | None:
    """Words with systemd's quotes and C escapes; None when a quote stays open."""
    words: list[str] = []
    word: str | None = None
    quote = ""
    for piece in _PIECE.findall(text):
        if piece.startswith("\\") and len(piece) > 1:
            word = (word or "") + _unescape(piece[1:])
        elif quote:
            quote, word = ("", word) if piece == quote else (quote, (word or "") + piece)
        elif piece in ("'", '"') and word is None:
            quote, word = piece, ""
        elif piece.isspace():
            words += [] if word is None else [word]
            word = None
        else:
            word = (word or "") + piece
    if quote:
        return None
    return words if word is None else [*words, word]


def seconds(text: str) -> float | None:
    """A time span such as `1min 30s`, `500ms`, `20` or `infinity` in seconds; None: not one."""
    if text.strip() in ("infinity",):
        return INFINITY
    parts = re.findall(r"([0-9.]+)\s*([a-z]*)\s*", text)
    if not parts or re.sub(r"([0-9.]+)\s*([a-z]*)\s*", "", text).strip():
        return None
    if any(unit not in _UNITS for _, unit in parts):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def spell_span(span: float) -> str:
    """A time span in systemd's own words: `1min 30s`, `1.500000s` never, `infinity` where it is."""
    if span == INFINITY:
        return "infinity"
    left = round(span * 1e6)
    if left == 0:
        return "0"
    words = []
    for size, unit in ((86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min")):
        if left >= size:
            words.append(f"{left // size}{unit}")
            left %= size
    if left >= 1_000_000:
        whole, rest = divmod(left, 1_000_000)
        words.append(f"{whole}.{rest:06d}".rstrip("0").rstrip(".") + "s")
    elif left >= 1000:
        words.append(f"{left / 1000:g}ms")
    elif left:
        words.append(f"{left}us")
    return " ".join(words)


def expand(words: Iterable[str], unit: str, environment: dict[str, str]) -> list[str]:
    """Command words with `%` specifiers and variables filled in; a bare `$NAME` may become several words."""
    out: list[str] = []
    for word in words:
        word = _specifiers(word, unit)
        bare = re.fullmatch(r"\$([A-Za-z_]\w*)", word)
        if bare:
            out += environment.get(bare[1], "").split()
            continue
        word = re.sub(r"\$\{([A-Za-z_]\w*)\}", lambda name: environment.get(name[1], ""), word)
        out.append(word.replace("$$", "$"))
    return out


def assignments(value: str, unit: str) -> dict[str, str]:
    """The variables of one Environment= line."""
    pairs = (_specifiers(word, unit).partition("=") for word in split_words(value) or [])
    return {name: text for name, equals, text in pairs if equals}


def environment_file(text: str) -> dict[str, str]:
    """The variables of an EnvironmentFile=: one NAME=value a line, quotes optional, # and ; comment."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith(("#", ";")):
            value = value.strip()
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            found[name.strip()] = value[1:-1] if quoted else value
    return found


@cache
def known_keys() -> dict[str, frozenset[str]]:
    """What systemd 252 takes, by section."""
    text = resources.files(__package__).joinpath("known_keys.txt").read_text()
    sections: dict[str, set[str]] = {}
    current: set[str] = set()
    for line in text.splitlines():
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), set())
        elif not line.startswith("#"):
            current.update(line.split())
    return {name: frozenset(keys) for name, keys in sections.items()}


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with continuations joined and comments gone, numbered by their last physical line."""
    held = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line.startswith(("#", ";")) or (not line and not held):
            continue
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        yield number, (held + line).strip()
        held = ""
    if held:
        yield len(text.splitlines()), held.strip()


def _problem(line: Line) -> Complaint | None:
    if line.section not in known_keys() or line.key.startswith("X-"):
        return None
    if line.key not in known_keys()[line.section]:
        return Complaint(text=f"Unknown key '{line.key}' in section [{line.section}], ignoring.")
    if (line.section, line.key) in _CHOICES:
        what, choices = _CHOICES[line.section, line.key]
        if line.value not in choices:
            return Complaint(text=f"Failed to parse {what}, ignoring: {line.value}")
    if line.key.startswith("Exec") and line.value:
        return _bad_command(line.value)
    if line.key.startswith("Limit") and not re.fullmatch(
        r"[0-9:a-zA-Z ]*?(\d+[KMGT]?|infinity|\d+[a-z]*)", line.value
    ):
        return Complaint(text=f"Failed to parse resource value, ignoring: {line.value}")
    if line.section == "Timer" and line.key.startswith("On") and line.key.endswith("Sec"):
        return None if seconds(line.value) is not None else _bad_timer(line)
    return None


def _bad_timer(line: Line) -> Complaint:
    return Complaint(text=f"Failed to parse timer value, ignoring: {line.value}")


def _bad_command(value: str) -> Complaint | None:
    words = split_words(value.lstrip("-@:+!"))
    if words is None:
        return Complaint(text=f'Unbalanced quoting, ignoring: "{value}"', fatal=True)
    if words and "/" in words[0] and not words[0].startswith("/"):
        text = f"Neither a valid executable name nor an absolute path: {words[0]}"
        return Complaint(text=text, fatal=True)
    return None


def _whole_unit(unit: UnitFile) -> list[Complaint]:
    name = unit.name
    if any(complaint.fatal for complaint in unit.complaints):
        text = f"{name}: Unit configuration has fatal error, unit will not be started."
        return [Complaint(text=text, fatal=True)]
    if name.endswith(".service") and not (
        unit.all("Service", "ExecStart") or unit.all("Service", "ExecStop")
    ):
        text = f"{name}: Service has no ExecStart=, ExecStop=, or SuccessAction=. Refusing."
        return [Complaint(text=text, fatal=True)]
    timer = [line for line in unit.lines if line.section == "Timer" and line.key.startswith("On")]
    if name.endswith(".timer") and not timer:
        return [Complaint(text=f"{name}: Timer unit lacks value setting. Refusing.", fatal=True)]
    return []


def _unescape(code: str) -> str:
    if len(code) == 3:
        return chr(int(code[1:], 16) if code[0] == "x" else int(code, 8))
    return _ESCAPES.get(code, "\\" + code)


def _specifiers(word: str, unit: str) -> str:
    stem = unit.rpartition(".")[0]
    prefix, _, instance = stem.partition("@")
    table = {"n": unit, "N": stem, "p": prefix, "i": instance, "%": "%", "t": "/run", "S": "/var/lib"}
    return re.sub(r"%(.)", lambda found: table.get(found[1], found[0]), word)
