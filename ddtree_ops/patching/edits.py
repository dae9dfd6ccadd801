"""Places in Python source found by parsing it, and our lines put there."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ddtree_ops.model.errors import Refused
from ddtree_ops.patching.lines import bare, marked, newline_of, split
from ddtree_ops.patching.patchset import Edit

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | Definition


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Lines `first` to `last` of a file, from 1, give way to ours; last < first inserts before `first`."""

    set: str
    first: int
    last: int
    touches: tuple[int, int]  # the statement that the edit is about, for finding two sets at one place
    lines: tuple[str, ...]  # without line ends


@lru_cache(maxsize=32)  # a set looks at a file many times
def parse(path: str, text: str) -> ast.Module:
    """The syntax tree, to be read only; a file that is cut short or edited by hand names its bad line."""
    try:
        return ast.parse(text.removeprefix("\ufeff"))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        reason = getattr(error, "msg", str(error))
        raise Refused(
            f"{path}:{line}", f"got source that does not parse ({reason}), expected Python as released"
        ) from None


def change(path: str, text: str, edit: Edit, name: str) -> Change:
    """Where the edit goes in this text; zero or several places raise Refused with what stands there."""
    lines = [bare(line) for line in split(text)]
    tree = parse(path, text)
    scope = definition(path, tree, edit.within)
    if edit.action == "top":
        return _insertion(name, _after_imports(tree), "", edit, touches=(0, 0))
    if edit.action == "append_method":
        return _appended(path, scope, edit, name, lines)
    if edit.anchor_expr:
        return _spliced(path, scope, edit, name, lines)
    return _statement(path, scope, edit, name, lines)


def apply(path: str, text: str, changes: Sequence[Change]) -> str:
    """The text with every change in it, line ends as the file has them; the result must parse."""
    lines = split(text)
    newline = newline_of(lines)
    ended = not lines or lines[-1] != bare(lines[-1])
    if not ended:
        lines[-1] += newline
    ordered = sorted(enumerate(changes), key=lambda item: (item[1].first, item[1].last, item[0]))
    for _, one in reversed(ordered):
        end = newline_of(lines[max(0, one.last - 1) :])
        lines[one.first - 1 : one.last] = [line + end for line in one.lines]
    patched = "".join(lines) if ended else "".join(lines).removesuffix(newline)
    parse(path, patched)
    return patched


def definition(path: str, tree: ast.Module, within: str) -> Scope:
    """The class or function of a dotted name; `""` is the module itself."""
    scope: Scope = tree
    for part in within.split(".") if within else ():
        named = [node for node in _definitions(scope) if node.name == part]
        if len(named) != 1:
            there = ", ".join(node.name for node in _definitions(scope)) or "nothing"
            raise Refused(
                f"{path}: {within}",
                f"got {len(named)} definitions of {part}, expected 1; there: {textwrap.shorten(there, 300)}",
                hint="ddtree-ops patch check shows which releases a set fits",
            )
        scope = named[0]
    return scope


def _definitions(scope: Scope) -> list[Definition]:
    """What the scope defines, in branches too (`if TYPE_CHECKING:`), but not inside its definitions."""
    found: list[Definition] = []
    todo: list[ast.AST] = list(scope.body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, Definition):
            found.append(node)
        else:
            todo.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))
    return found


def _bodies(scope: Scope) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(scope):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body:
                yield body


def _statement(path: str, scope: Scope, edit: Edit, name: str, lines: list[str]) -> Change:
    runs = list(_matches(scope, edit))
    if len(runs) != 1:
        raise _missed(path, scope, edit, len(runs), [run[0].lineno for run in runs], lines)
    first, last = _extent(path, runs[0], lines)
    indent = _indent(lines[first - 1])
    if edit.action == "replace":
        return _replacement(path, name, (first, last), indent, edit.text, lines)
    at = first if edit.action == "before" else last + 1
    return _insertion(name, at, indent, edit, touches=(first, last))


def _matches(scope: Scope, edit: Edit) -> Iterator[list[ast.stmt]]:
    if edit.anchor_startswith:
        words = edit.anchor_startswith.strip()
        for body in _bodies(scope):
            yield from ([node] for node in body if ast.unparse(node).startswith(words))
        return
    wanted = [ast.unparse(node) for node in ast.parse(textwrap.dedent(edit.anchor or "")).body]
    for body in _bodies(scope):
        texts = [ast.unparse(node) for node in body]
        for start in range(len(body) - len(wanted) + 1):
            if texts[start : start + len(wanted)] == wanted:
                yield body[start : start + len(wanted)]


def _spliced(path: str, scope: Scope, edit: Edit, name: str, lines: list[str]) -> Change:
    """One expression replaced inside the physical lines that it stands on."""
    nodes = [
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.expr) and ast.unparse(node) == edit.anchor_expr
    ]
    if len(nodes) != 1:
        raise _missed(path, scope, edit, len(nodes), [node.lineno for node in nodes], lines)
    node = nodes[0]
    first, last = node.lineno, node.end_lineno or node.lineno
    head = lines[first - 1].encode()[: node.col_offset].decode()
    tail = lines[last - 1].encode()[node.end_col_offset :].decode()
    indent = _indent(lines[first - 1])
    return _replacement(
        path, name, (first, last), indent, f"{head.removeprefix(indent)}{edit.text.strip()}{tail}", lines
    )


def _appended(path: str, scope: Scope, edit: Edit, name: str, lines: list[str]) -> Change:
    if not isinstance(scope, ast.ClassDef):
        raise Refused(
            f"{path}: {edit.within}", "got a function, expected the class that append_method adds to"
        )
    last = scope.body[-1].end_lineno or scope.lineno
    first = min(
        [scope.body[0].lineno, *(node.lineno for node in getattr(scope.body[0], "decorator_list", []))]
    )
    return _insertion(name, last + 1, _indent(lines[first - 1]), edit, touches=(0, 0), apart=True)


def _replacement(
    path: str, name: str, span: tuple[int, int], indent: str, text: str, lines: list[str]
) -> Change:
    was = lines[span[0] - 1 : span[1]]
    for number, line in enumerate(was, start=span[0]):
        if line and not line.startswith(indent):
            raise Refused(f"{path}:{number}", "got a line that leaves its statement's indent, expected none")
    ours = marked(name, indent, was, _indented(text, indent))
    return Change(set=name, first=span[0], last=span[1], touches=span, lines=tuple(ours))


def _insertion(
    name: str, at: int, indent: str, edit: Edit, *, touches: tuple[int, int], apart: bool = False
) -> Change:
    text = ([""] if apart else []) + _indented(edit.text, indent)
    ours = marked(name, indent, (), text)
    return Change(set=name, first=at, last=at - 1, touches=touches, lines=tuple(ours))


def _indented(text: str, indent: str) -> list[str]:
    return [indent + line if line.strip() else "" for line in textwrap.dedent(text).strip("\n").split("\n")]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _extent(path: str, run: list[ast.stmt], lines: list[str]) -> tuple[int, int]:
    """First and last line of the statements; they must have those lines to themselves."""
    decorators = getattr(run[0], "decorator_list", [])
    first = min([run[0].lineno, *(node.lineno for node in decorators)])
    last = run[-1].end_lineno or run[-1].lineno
    rest = lines[last - 1].encode()[run[-1].end_col_offset :].decode().strip()
    if run[0].col_offset != len(_indent(lines[run[0].lineno - 1])) or (rest and not rest.startswith("#")):
        raise Refused(
            f"{path}:{first}", f"got {lines[first - 1].strip()!r}, expected one statement on its line"
        )
    return first, last


def _after_imports(tree: ast.Module) -> int:
    """The line after the last import at module level, docstring and __future__ included; from 1."""
    last = 0
    for number, node in enumerate(tree.body):
        documents = number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if documents or isinstance(node, ast.Import | ast.ImportFrom):
            last = node.end_lineno or node.lineno
    return last + 1


def _missed(path: str, scope: Scope, edit: Edit, count: int, at: list[int], lines: list[str]) -> Refused:
    wanted = (edit.anchor or edit.anchor_startswith or edit.anchor_expr or "").strip()
    there = f"; at lines {', '.join(map(str, at))}" if at else f"; there: {_nearest(scope, wanted, lines)}"
    return Refused(
        f"{path}: {edit.within or 'module'}",
        f"got {count} places for {textwrap.shorten(wanted, 160)!r}, expected 1{there}",
        hint="ddtree-ops patch check shows which releases a set fits",
    )


def _nearest(scope: Scope, wanted: str, lines: list[str]) -> str:
    """The statement that most resembles a missing anchor, with its line: what stands there instead."""
    words = set(_words(wanted))
    target = _words(wanted.split("=")[0])
    best, score = "nothing like it", 0.0
    for body in _bodies(scope):
        for node in body:
            text = ast.unparse(node).split("\n")[0]
            seen = set(_words(text))
            same = len(words & seen) / max(1, len(words | seen)) + (_words(text.split("=")[0]) == target)
            if same > score and same > 0.2:
                best, score = f"line {node.lineno}: {lines[node.lineno - 1].strip()}", same
    return best


def _words(text: str) -> list[str]:
    return [
        word for word in "".join(c if c.isidentifier() or c.isdigit() else " " for c in text).split() if word
    ]
