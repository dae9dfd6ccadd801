"""Workloads: shipped ones and operators' own files, as prompts that a prefix cache cannot shorten."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ddtree_ops.measure.client import Prompt
from ddtree_ops.model.errors import UsageError

SHIPPED = ("code", "poem", "chat", "long-context", "shared-prefix")
MOST = 100_000  # prompts read of one file
LONGEST_JSON = 1 << 30  # bytes; a JSON array must be read at once, JSONL need not


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One entry of a workload; `prefix` is what it shares with others, before any mark."""

    text: str
    prefix: str = ""
    max_tokens: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    name: str
    tasks: tuple[Task, ...]


def workload(name: str) -> Workload:
    """A shipped workload by its name, or an operator's file by its path; UsageError says what is wrong."""
    if name in SHIPPED:
        text = resources.files(__package__).joinpath("workloads", f"{name}.jsonl").read_text("utf-8")
        return Workload(name=name, tasks=tuple(_shipped(text)))
    path = Path(name)
    if not path.is_file():
        known = ", ".join(SHIPPED)
        raise UsageError("workload", f"got {name!r}, expected a file or one of {known}")
    tasks = tuple(itertools.islice(_tasks(path), MOST))
    if not tasks:
        raise UsageError(str(path), "got no prompt, expected at least one JSON line with a prompt")
    return Workload(name=path.stem, tasks=tasks)


def _shipped(text: str) -> Iterator[Task]:
    """A line with only a prefix sets it for the lines after it."""
    prefix = ""
    for line in text.splitlines():
        fields = json.loads(line)
        prefix = fields.get("prefix", prefix)
        if "prompt" in fields:
            yield Task(text=fields["prompt"], prefix=prefix, max_tokens=fields.get("max_tokens", 256))


def prompts(
    source: Workload, *, mark: str = "", max_tokens: int | None = None, start: int = 0
) -> Iterator[Prompt]:
    """Endless prompts in the workload's order, over and over.

    With a mark, each begins (after what it shares on purpose) with a line that no other prompt of
    any run with another mark has, so that no prefix cache can help; without, flush between cells.
    """
    for number in itertools.count(start):
        position = number % len(source.tasks)
        task = source.tasks[position]
        line = f"(Request {mark}-{number})\n" if mark else ""
        yield Prompt(
            id=f"{source.name}/{position}",
            text=f"{task.prefix}{line}{task.text}",
            max_tokens=max_tokens or task.max_tokens,
        )


def _tasks(path: Path) -> Iterator[Task]:
    for where, entry in _entries(path):
        text = _text_of(entry)
        if not text:
            raise UsageError(
                where, "got an entry without a prompt, expected prompt, text, messages or conversations"
            )
        most = entry.get("max_tokens") if isinstance(entry, dict) else None
        yield Task(text=text, max_tokens=most if isinstance(most, int) and most > 0 else 256)


def _entries(path: Path) -> Iterator[tuple[str, object]]:
    try:
        with path.open(encoding="utf-8") as lines:
            if lines.read(1) == "[":
                yield from _array(path)
                return
            lines.seek(0)
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{path}:{number}", json.loads(line)
    except UnicodeDecodeError as error:
        raise UsageError(str(path), f"got bytes that are not UTF-8 ({error}), expected text") from error
    except json.JSONDecodeError as error:
        raise UsageError(str(path), f"got {error}, expected one JSON object a line") from error
    except OSError as error:
        raise UsageError(str(path), f"got {error.strerror}, expected a readable file") from error


def _array(path: Path) -> Iterator[tuple[str, object]]:
    size = path.stat().st_size
    if size > LONGEST_JSON:
        hint = "jq -c '.[]' FILE.json > FILE.jsonl"
        raise UsageError(str(path), f"got a JSON array of {size:,} bytes, expected at most 1 GiB", hint=hint)
    for number, entry in enumerate(json.loads(path.read_text(encoding="utf-8"))):
        yield f"{path}[{number}]", entry


def _text_of(entry: object) -> str:
    """The user's text in any of the forms that people keep prompts in; "" for none."""
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, dict):
        return ""
    for key in ("prompt", "text"):
        if isinstance(entry.get(key), str):
            return str(entry[key])
    turns = entry.get("messages") or entry.get("conversations")
    if not isinstance(turns, list):
        return ""
    said = [turn for turn in turns if isinstance(turn, dict)]
    users = [turn for turn in said if turn.get("role", turn.get("from")) in ("user", "human")]
    return str(users[0].get("content") or users[0].get("value") or "") if users else ""
