"""What stands in a source tree: stock, ours, somebody else's, or nothing that our sets fit."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ddtree_ops.model.errors import OpsError, Refused
from ddtree_ops.model.facts import Sglang
from ddtree_ops.patching.apply import apply_sets
from ddtree_ops.patching.contract import Read
from ddtree_ops.patching.lines import bare, blocks, split, unapplied
from ddtree_ops.patching.patchset import load, names_in
from ddtree_ops.patching.source import Source, decoded


class State(StrEnum):
    """Of a file or of a whole tree; the later, the worse."""

    STOCK = "stock"
    PATCHED = "patched"  # by our sets alone: without them it is the release's file, byte for byte
    UNVERIFIED = "unverified"  # no RECORD and no stock text to compare with
    MODIFIED = "modified"  # by someone else


class Fit(StrEnum):
    """How a set relates to a tree."""

    APPLIED = "applied"
    FITS = "fits"
    NOT_NEEDED = "not needed"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """One file that is not as released; `lines` are the foreign ones, (first, last) from 1."""

    path: str
    state: State
    sets: tuple[str, ...] = ()
    lines: tuple[tuple[int, int], ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetState:
    name: str
    fit: Fit
    detail: str = ""  # evidence, or which anchor fails and what stands there


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeState:
    """`state` is the worst of its files; `sets` says for each known patch set how it fits."""

    version: str
    state: State
    files: tuple[FileState, ...]
    sets: tuple[SetState, ...]

    @property
    def applied(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.sets if one.fit is Fit.APPLIED)


def recognise(source: Source, sets_dir: Path, stock: Read | None = None) -> TreeState:
    """Compares every file with RECORD, or with `stock` where that gives its text.

    `stock` reads the release's own files (from its wheel); with it, foreign lines are named too.
    """
    texts = {}
    for path, data in source.contents():
        if hashlib.sha256(data).hexdigest() != source.record.get(path):
            texts[path] = decoded(f"{source.where}: {path}", data)
    return judge(texts, source.version, source.record, sets_dir, read=source.read, stock=stock)


def recognise_node(
    found: Sglang, record: Mapping[str, str], sets_dir: Path, stock: Read | None = None
) -> TreeState:
    """The same of a probed node, from its modified files; `record` is path → sha256 of its RECORD."""
    texts = {file.path: file.text for file in found.modified if file.text is not None}
    asked = {file.path: file.text for file in found.files if file.text is not None} | texts
    return judge(texts, found.version or "", record, sets_dir, read=asked.get, stock=stock)


def judge(
    texts: Mapping[str, str],
    version: str,
    record: Mapping[str, str],
    sets_dir: Path,
    *,
    read: Read,
    stock: Read | None = None,
) -> TreeState:
    """The state of a tree from those of its files that do not have RECORD's hash.

    `read` must give at least the files that the sets look at (`apply.needed_files`).
    """

    def base(path: str) -> str | None:
        if path in overlays:
            return None
        text = read(path)
        return None if text is None else unapplied(text)

    overlays = _overlays(texts, sets_dir)
    marked = sorted({block.set for text in texts.values() for block in blocks(text)} | set(overlays.values()))
    ours = _ours(marked, sets_dir, base, version)
    files = [
        _file(path, text, record=record, stock=stock, ours=ours, overlay=overlays.get(path))
        for path, text in sorted(texts.items())
    ]
    odd = tuple(file for file in files if file is not None)
    order = list(State)
    worst = max((order.index(file.state) for file in odd), default=0)
    sets = tuple(_fit(name, marked, sets_dir, base, version) for name in names_in(sets_dir))
    return TreeState(version=version, state=order[worst], files=odd, sets=sets)


def _file(
    path: str,
    text: str,
    *,
    record: Mapping[str, str],
    stock: Read | None,
    ours: Mapping[str, str],
    overlay: str | None,
) -> FileState | None:
    """None: as released. A file without RECORD's word is compared with the stock text, if there is one."""
    sets = tuple(dict.fromkeys(block.set for block in blocks(text)))
    if overlay is not None:
        return FileState(path=path, state=State.PATCHED, sets=(overlay,), note="new file of the set")
    released = stock(path) if stock else None
    recorded = record.get(path) or (_sha256(released) if released is not None else None)
    if recorded is None:
        note = "not in the wheel's RECORD" if record else "no RECORD to compare with"
        return FileState(
            path=path, state=State.MODIFIED if record else State.UNVERIFIED, sets=sets, note=note
        )
    if _sha256(text) == recorded:
        return None
    if _sha256(unapplied(text)) != recorded:
        lines = _foreign(released, text) if released is not None else ()
        return FileState(path=path, state=State.MODIFIED, sets=sets, lines=lines, note=_why(text, lines))
    if text != ours.get(path):
        lines = tuple((block.first, block.last) for block in blocks(text))
        note = "marked as ours, but not what the set writes today"
        return FileState(path=path, state=State.MODIFIED, sets=sets, lines=lines, note=note)
    return FileState(path=path, state=State.PATCHED, sets=sets)


def _ours(marked: Sequence[str], sets_dir: Path, base: Read, version: str) -> dict[str, str]:
    """What our sets make of the unpatched base today, by path."""
    known = [name for name in marked if name in names_in(sets_dir)]
    try:
        tree = apply_sets(known, sets_dir, base, version)
    except OpsError:
        return {}
    return {file.path: file.after for file in tree.files}


def _overlays(texts: Mapping[str, str], sets_dir: Path) -> dict[str, str]:
    """Files that a set adds, where their text is the set's own: path → set."""
    found = {}
    for name in names_in(sets_dir):
        patch = load(sets_dir / name)
        found.update({path: name for path in patch.overlay if texts.get(path) == patch.overlay_text(path)})
    return found


def _fit(name: str, marked: Sequence[str], sets_dir: Path, base: Read, version: str) -> SetState:
    if name in marked:
        return SetState(name=name, fit=Fit.APPLIED)
    try:
        tree = apply_sets([name], sets_dir, base, version)
    except Refused as error:
        return SetState(name=name, fit=Fit.UNSUPPORTED, detail=str(error))
    if why := dict(tree.not_needed).get(name):
        return SetState(name=name, fit=Fit.NOT_NEEDED, detail=why)
    return SetState(name=name, fit=Fit.FITS)


def _foreign(released: str, text: str) -> tuple[tuple[int, int], ...]:
    """Lines of the text that are neither released nor inside one of our blocks; a deletion is one line."""
    ours = {line for block in blocks(text) for line in range(block.first, block.last + 1)}
    matcher = difflib.SequenceMatcher(None, split(released), split(text), autojunk=False)
    found = []
    for tag, _, _, first, last in matcher.get_opcodes():
        span = (first + 1, max(first + 1, last))
        if tag != "equal" and not set(range(span[0], span[1] + 1)) <= ours:
            found.append(span)
    return tuple(found)


def _why(text: str, lines: Sequence[tuple[int, int]]) -> str:
    if not lines:
        return "differs from the wheel's RECORD"
    number = lines[0][0]
    source = split(text)
    there = bare(source[number - 1]).strip() if number <= len(source) else "the end of the file"
    return f"line {number}: {there}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
