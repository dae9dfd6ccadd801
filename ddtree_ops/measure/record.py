"""Results on disk: whole files by rename, ledgers by fsynced lines, a clear word when the disk is full."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from ddtree_ops.measure.client import Sample
from ddtree_ops.model.errors import Failed, UsageError

COLUMNS = (
    "index", "prompt", "warmup", "outcome", "status", "start", "lag", "ttft", "e2e", "tpot", "rate", "tokens",
    "prompt_tokens", "cached_tokens", "reasoning_tokens", "verify_steps", "accept_length", "finish", "detail",
)  # fmt: skip


def write_file(path: Path, text: str) -> None:
    """Puts a whole file in place of the old one, or leaves the old one; Failed says what stood in the way."""
    beside = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        if beside.exists():
            beside.unlink()


def append_line(path: Path, value: Mapping[str, object]) -> None:
    """Adds one JSON line and has it on disk before returning; a line that does not fit is taken back."""
    line = (json.dumps(value, ensure_ascii=False, default=str) + "\n").encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                while line:
                    line = line[file.write(line) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise
    except OSError as error:
        raise _unwritable(path, error) from error


def read_lines(path: Path) -> list[dict[str, object]]:
    """A ledger's entries; a last line that a crash cut short is left out, any other damage is an error."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    entries: list[dict[str, object]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entries.append(json.loads(line))
        except ValueError as error:
            if number == len(lines):  # no newline after it: torn
                break
            raise UsageError(f"{path}:{number}", f"got {error}, expected a JSON line") from error
    return entries


def mend(path: Path) -> None:
    """Cuts off a torn last line, so that the next one appended starts on its own line."""
    if path.exists() and (data := path.read_bytes()) and not data.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)


def _unwritable(path: Path, error: OSError) -> Failed:
    hint = f"df -h {path.parent}"
    return Failed(str(path), f"got {error.strerror or error}, expected to write the results", hint=hint)


def samples_jsonl(samples: Iterable[Sample]) -> str:
    """Raw samples, one JSON line each, arrivals included."""
    return "".join(json.dumps(asdict(sample), ensure_ascii=False) + "\n" for sample in samples)


def samples_csv(samples: Iterable[Sample]) -> str:
    """One row a request, with the derived figures that a spreadsheet wants."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows([getattr(sample, column) for column in COLUMNS] for sample in samples)
    return out.getvalue()
