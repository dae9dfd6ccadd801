"""What a set relies on, looked up in the sources: claims and their evidence."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from ddtree_ops.model.errors import Refused
from ddtree_ops.patching.edits import Scope, definition, parse
from ddtree_ops.patching.patchset import Claim, PatchSet, covers

Read = Callable[[str], str | None]


def breaches(claims: Iterable[Claim], read: Read, version: str) -> tuple[str, ...]:
    """Every claim that does not hold, as `file: within: got …, expected …`; () is a kept contract."""
    found = []
    for claim in claims:
        if not claim.versions or covers(claim.versions, version):
            try:
                _shown(claim, read)
            except Refused as error:
                found.append(str(error))
    return tuple(found)


def evidence(patch: PatchSet, read: Read, version: str) -> str | None:
    """Why the release does not need the set, with the lines that show it; None when it does."""
    if patch.unnecessary is None:
        return None
    shown = []
    for claim in patch.unnecessary.evidence:
        if claim.versions and not covers(claim.versions, version):
            continue
        try:
            shown.append(_shown(claim, read))
        except Refused:
            return None
    return f"{patch.unnecessary.because} ({'; '.join(shown)})" if shown else None


def _shown(claim: Claim, read: Read) -> str:
    """Where the claim holds, as `file:line: source`; raises Refused where it does not."""
    text = read(claim.file)
    if text is None:
        raise Refused(claim.file, "got no such file, expected it in the sglang package")
    scope = definition(claim.file, parse(claim.file, text), claim.within)
    where = f"{claim.file}: {claim.within or 'module'}"
    _check_arguments(where, scope, claim)
    lines = [_reads(where, scope, expression) for expression in claim.reads]
    if claim.reads_any:
        lines.append(_reads_any(where, scope, claim.reads_any))
    line = min(lines, default=getattr(scope, "lineno", 1))
    source = text.splitlines()[line - 1].strip() if text else ""
    return f"{claim.file}:{line}: {source}"


def _check_arguments(where: str, scope: Scope, claim: Claim) -> None:
    if not claim.arguments:
        return
    if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        raise Refused(where, "got a class or module, expected a function")
    taken = scope.args
    names = [arg.arg for arg in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)]
    if missing := [name for name in claim.arguments if name not in names]:
        raise Refused(where, f"got parameters {', '.join(names)}, expected also {', '.join(missing)}")


def _reads(where: str, scope: Scope, expression: str) -> int:
    """First line of the scope on which the expression occurs."""
    lines = [
        node.lineno
        for node in ast.walk(scope)
        if isinstance(node, ast.expr) and ast.unparse(node) == expression
    ]
    if not lines:
        raise Refused(where, f"got no {expression}, expected it there")
    return min(lines)


def _reads_any(where: str, scope: Scope, expressions: tuple[str, ...]) -> int:
    for expression in expressions:
        try:
            return _reads(where, scope, expression)
        except Refused:
            continue
    raise Refused(where, f"got none of {', '.join(expressions)}, expected one of them there")
