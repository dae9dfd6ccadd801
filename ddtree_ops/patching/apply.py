"""Patch sets and operators' own diffs applied to the sources of one SGLang; pure, nothing is written."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

from ddtree_ops.model.errors import Refused, UsageError
from ddtree_ops.model.patch import PatchedFile, PatchedTree
from ddtree_ops.patching import edits, unified
from ddtree_ops.patching.contract import Read, breaches, evidence
from ddtree_ops.patching.edits import Change
from ddtree_ops.patching.lines import blocks
from ddtree_ops.patching.patchset import PatchSet, covers, inside, load, names_in, release_of

DIFF = ".patch"


def apply_sets(names: Iterable[str], sets_dir: Path, read: Read, version: str) -> PatchedTree:
    """What the base becomes under these sets, their includes first.

    A name ending in `.patch` is the path of an operator's unified diff, applied before the sets to
    the lines that it names, with no fuzz and no offset. `read` gives a base file's text by its path
    (`sglang/srt/…`), None where the base has none; line ends must be as on disk. Raises UsageError
    for a bad set and Refused for a base that the sets do not fit.
    """
    sets, diffs = _sorted_names(names, sets_dir)
    given = _operators(diffs, read)
    base = _over(given, read)
    needed, spare = _split_needed(sets, base, version)
    _refuse_patched(needed, base)
    done = {file.path: file for file in given}
    for path, changes in _changes(needed, base, version).items():
        text = base(path) or ""
        before = done[path].before if path in done else text
        done[path] = PatchedFile(path=path, before=before, after=edits.apply(path, text, changes))
    for file in _overlays(needed, base):
        done[file.path] = file
    return PatchedTree(
        sglang=version,
        sets=(*(Path(name).name for name in diffs), *(one.name for one in needed)),
        not_needed=spare,
        files=tuple(done[path] for path in sorted(done)),
    )


def needed_files(names: Iterable[str], sets_dir: Path) -> tuple[str, ...]:
    """Every base path that applying these names reads, sorted; some exist in some releases only."""
    sets, diffs = _sorted_names(names, sets_dir)
    paths = {path for one in sets for path in one.files}
    return tuple(sorted(paths | {hunks.path for name in diffs for hunks in _diff(name)}))


def resolve(names: Iterable[str], sets_dir: Path) -> tuple[PatchSet, ...]:
    """The sets in the order of their application, includes first, each once; operators' diffs are none."""
    order: dict[str, PatchSet] = {}
    for name in names:
        if not name.endswith(DIFF):
            _resolve(name, sets_dir, order, ())
    return tuple(order.values())


def digest(tree: PatchedTree) -> str:
    """sha256 over paths and texts of everything that differs from the base."""
    total = hashlib.sha256()
    for file in tree.files:
        text = file.after.encode("utf-8", "surrogateescape")
        total.update(f"{file.path}\0{len(text)}\0".encode() + text)
    return total.hexdigest()


def unified_diff(tree: PatchedTree, context: int = 3) -> str:
    """The tree as one unified diff, `a/sglang/…` to `b/sglang/…`; "" when nothing changes."""
    return "".join(_diff_of(file, context) for file in tree.files)


def _diff_of(file: PatchedFile, context: int) -> str:
    before = (file.before or "").splitlines(keepends=True)
    old = "/dev/null" if file.before is None else f"a/{file.path}"
    lines = difflib.unified_diff(
        before, file.after.splitlines(keepends=True), old, f"b/{file.path}", n=context
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _sorted_names(names: Iterable[str], sets_dir: Path) -> tuple[tuple[PatchSet, ...], tuple[str, ...]]:
    wanted = tuple(names)
    for name in wanted:
        if wanted.count(name) > 1:
            raise UsageError("patches", f"got {name} twice, expected each once")
    diffs = tuple(name for name in wanted if name.endswith(DIFF))
    return resolve(wanted, sets_dir), diffs


def _resolve(name: str, sets_dir: Path, order: dict[str, PatchSet], asked_by: tuple[str, ...]) -> None:
    if name in asked_by:
        raise UsageError("patch set", f"got includes in a circle ({' → '.join((*asked_by, name))})")
    if name in order:
        return
    if name not in names_in(sets_dir):
        known = ", ".join(names_in(sets_dir)) or "none"
        raise UsageError("patch set", f"got {name}, expected one of: {known}", hint="ddtree-ops patch list")
    found = load(sets_dir / name)
    for other in found.includes:
        _resolve(other, sets_dir, order, (*asked_by, name))
    order[name] = found


def _split_needed(
    sets: Sequence[PatchSet], read: Read, version: str
) -> tuple[tuple[PatchSet, ...], tuple[tuple[str, str], ...]]:
    """Sets to apply, and (set, evidence) of those that this release does not need."""
    needed, spare = [], []
    for one in sets:
        if shown := evidence(one, read, version):
            spare.append((one.name, shown))
            continue
        if not covers(one.versions, version):
            raise Refused(
                f"patch set {one.name}",
                f"got sglang {version}, expected {one.versions}",
                hint=f"ddtree-ops patch check --sglang {release_of(version)}",
            )
        needed.append(one)
    return tuple(needed), tuple(spare)


def _refuse_patched(sets: Sequence[PatchSet], read: Read) -> None:
    for path in sorted({entry.file for one in sets for entry in one.edits}):
        if found := blocks(read(path) or ""):
            by = ", ".join(sorted({block.set for block in found}))
            raise Refused(
                f"{path}:{found[0].first}",
                f"got a file already patched by {by}, expected the stock file",
                hint="apply patch sets to an unpatched sglang; ddtree-ops patch check says what a tree is",
            )


def _changes(sets: Sequence[PatchSet], read: Read, version: str) -> dict[str, list[Change]]:
    """Changes by path, all found in the base text; a broken contract or a clash raises Refused."""
    found: dict[str, list[Change]] = {}
    for one in sets:
        for breach in breaches(one.contract, read, version):
            raise Refused(f"patch set {one.name}", f"contract: {breach}")
        for edit in one.edits:
            if edit.versions and not covers(edit.versions, version):
                continue
            text = read(edit.file)
            if text is None:
                raise Refused(f"patch set {one.name}", f"got no {edit.file}, expected it in sglang {version}")
            found.setdefault(edit.file, []).append(edits.change(edit.file, text, edit, one.name))
    for path, changes in found.items():
        _refuse_clash(path, changes)
    return found


def _refuse_clash(path: str, changes: Sequence[Change]) -> None:
    for one, other in combinations(changes, 2):
        overlap = one.touches[0] <= other.touches[1] and other.touches[0] <= one.touches[1]
        if overlap and one.set != other.set and one.touches[0]:
            raise Refused(
                f"{path}:{max(one.touches[0], other.touches[0])}",
                f"got patch sets {one.set} and {other.set} at one statement, expected one set for each",
                hint="leave one of the two out",
            )
        if overlap and one.touches[0] and one.last >= one.first and other.last >= other.first:
            raise Refused(
                f"{path}:{one.first}", f"got two replacements of one statement by {one.set}, expected one"
            )


def _overlays(sets: Sequence[PatchSet], read: Read) -> list[PatchedFile]:
    found: dict[str, PatchedFile] = {}
    for one in sets:
        for path in one.overlay:
            if path in found or read(path) is not None:
                raise Refused(
                    f"patch set {one.name}", f"got {path} there already, expected a new file from the overlay"
                )
            edits.parse(path, one.overlay_text(path))
            found[path] = PatchedFile(path=path, before=None, after=one.overlay_text(path))
    return list(found.values())


def _diff(name: str) -> tuple[unified.FileDiff, ...]:
    try:
        text = Path(name).read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(name, f"got {error}, expected a unified diff") from None
    return unified.parse(name, text)


def _operators(diffs: Sequence[str], read: Read) -> list[PatchedFile]:
    """The base under the operator's own diffs, in the order given."""
    done: dict[str, PatchedFile] = {}
    for name in diffs:
        for one in _diff(name):
            try:
                inside(one.path)
            except ValueError as error:
                raise UsageError(name, str(error)) from None
            earlier = done.get(one.path)
            text = earlier.after if earlier else read(one.path)
            after = unified.applied(name, one, text)
            before = earlier.before if earlier else text
            done[one.path] = PatchedFile(path=one.path, before=before, after=after)
    return list(done.values())


def _over(files: Sequence[PatchedFile], read: Read) -> Read:
    texts = {file.path: file.after for file in files}
    return lambda path: texts[path] if path in texts else read(path)
