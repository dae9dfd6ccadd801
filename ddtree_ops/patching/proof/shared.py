"""One kernel, many releases: a launch with the same code and the same arguments is not repeated.

Releases often differ around a kernel and not in it. On a CPU, where a launch takes tens of
milliseconds, its result is kept under a digest of the kernel's code, the metadata and the case
(which fixes every other input).
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from types import ModuleType
from typing import Any

import torch

from .cases import Case

BLOCKS = "_get_block_sizes_for_extend_attention"

results: dict[str, torch.Tensor] = {}


class Kernel:
    """Launches a tree's kernel, or brings back what the same launch wrote before; CPU only."""

    def __init__(self) -> None:
        self.digests: dict[tuple[int, int], str] = {}

    def __call__(
        self,
        kernel: Any,
        case: Case,
        query: Any,
        key: Any,
        value: Any,
        output: Any,
        *given: Any,
        **named: Any,
    ) -> None:
        """`given` and `named` are the kernel's arguments after its output."""
        if output.is_cuda:
            kernel(query, key, value, output, *given, **named)
            return
        name = self._name(kernel, case, output, given, named)
        if name in results:
            output.copy_(results[name])
            return
        kernel(query, key, value, output, *given, **named)
        results[name] = output.clone()

    def _name(
        self, kernel: Any, case: Case, output: Any, given: tuple[Any, ...], named: dict[str, Any]
    ) -> str:
        shape = (case.heads.key, case.heads.value)
        if shape not in self.digests:
            self.digests[shape] = digest(kernel, *shape)
        total = hashlib.sha256(self.digests[shape].encode())
        total.update(repr((case.heads, case.prefixes, case.seed, case.width, output.shape)).encode())
        rows, starts, slots, *rest = given[2:]  # after the pools, which the case fixes
        _update(total, rows, starts, slots[: int(starts[-1])], *rest, *(named[key] for key in sorted(named)))
        return total.hexdigest()


class Indices:
    """The kernel that lists a batch's pool slots, launched once for each set of arguments; CPU only."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.digest = kernel, digest(kernel, 0, 0)

    def __getitem__(self, grid: Any) -> Any:
        launch = self.kernel[grid]

        def listed(
            slots: Any, rows: Any, lengths: Any, starts: Any, first: Any, out: Any, *rest: Any, **named: Any
        ) -> None:
            if out.is_cuda or first is not None:
                launch(slots, rows, lengths, starts, first, out, *rest, **named)
                return
            total = hashlib.sha256(self.digest.encode())
            _update(total, slots, rows, lengths, starts, *rest, *(named[key] for key in sorted(named)))
            name, size = total.hexdigest(), int(starts[-1])
            if name not in results:
                launch(slots, rows, lengths, starts, first, out, *rest, **named)
                results[name] = out[:size].clone()
            out[:size] = results[name]

        return listed


def patch_once() -> None:
    """Triton's language is made ready for the interpreter once a process, not at each call and back again.

    That takes a third of a small launch. With another triton, whose insides differ, nothing is changed.
    """
    try:
        from triton.runtime import interpreter

        real, nothing = interpreter._patch_lang, interpreter._LangPatchScope
    except (ImportError, AttributeError):
        return
    if real.__name__ != "_patch_lang":
        return
    done: set[frozenset[str]] = set()

    def once(function: Any) -> Any:
        modules = (found for found in function.__globals__.values() if isinstance(found, ModuleType))
        language = frozenset(one.__name__ for one in modules if one.__name__.startswith("triton.language"))
        if language not in done:
            done.add(language)
            real(function)
        return nothing()  # a scope that restores nothing

    interpreter._patch_lang = once


def digest(kernel: Any, key: int, value: int) -> str:
    """sha256 over the code of a kernel's launcher and everything of SGLang's that it calls, without comments.

    Block sizes enter as what they are for this head shape, not as the table that gives them.
    """
    total = hashlib.sha256()
    todo, done = [_plain(kernel)], set()
    while todo:
        function = todo.pop()
        if function in done:
            continue
        done.add(function)
        total.update(ast.dump(_body(function)).encode())
        for name in sorted(_names(function)):
            found = function.__globals__.get(name)
            if name == BLOCKS:
                total.update(repr(found(key, value)).encode())
            elif isinstance(found, bool | int | float | str):
                total.update(f"{name}={found!r}".encode())
            elif _ours(found):
                todo.append(_plain(found))
    return total.hexdigest()


def _plain(function: Any) -> Any:
    """The Python function under torch's and triton's wrappers."""
    while (inner := getattr(function, "fn", None) or getattr(function, "__wrapped__", None)) is not None:
        function = inner
    return function


def _ours(found: Any) -> bool:
    plain = _plain(found) if found is not None else None
    return inspect.isfunction(plain) and plain.__module__.startswith("sglang.")


def _body(function: Any) -> ast.AST:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    body = getattr(tree, "body", [])
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body.pop(0)
    return tree


def _names(function: Any) -> set[str]:
    return {node.id for node in ast.walk(_body(function)) if isinstance(node, ast.Name)}


def _update(total: Any, *values: Any) -> None:
    for value in values:
        if isinstance(value, torch.Tensor):
            total.update(value.contiguous().view(-1).cpu().numpy().tobytes())
        else:
            total.update(repr(value).encode())
        total.update(b";")
