"""The verify width, evaluated from the triton_backend.py of the sglang that this process would import."""

from __future__ import annotations

import ast
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace

from .server_args import ServerArgs

WIDTH = "self.num_draft_tokens"


def staged_backend() -> Path:
    """The first `sglang` on sys.path, found without importing it."""
    spec = PathFinder.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'sglang'", name="sglang")
    return Path(spec.submodule_search_locations[0], "srt/layers/attention/triton_backend.py")


def verify_width(source: str, args: ServerArgs, *, draft: bool) -> int:
    """What `TritonAttnBackend.__init__` would set num_draft_tokens to, for the target or the draft worker."""
    body = _constructor(ast.parse(source)).body
    runner = SimpleNamespace(server_args=args, is_draft_worker=draft)
    names = {"self": SimpleNamespace(), "model_runner": runner}
    module = ast.Module(body=_statements(body, WIDTH), type_ignores=[])
    exec(compile(module, "triton_backend.py", "exec"), names)  # the engine's own source
    return int(names["self"].num_draft_tokens)


def _constructor(tree: ast.Module) -> ast.FunctionDef:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "TritonAttnBackend":
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
                    return inner
    raise LookupError("triton_backend.py has no TritonAttnBackend.__init__")


def _statements(body: list[ast.stmt], wanted: str) -> list[ast.stmt]:
    """The statements that set the wanted name, and those that set what they read, in order."""
    needed = {wanted}
    kept: list[ast.stmt] = []
    for statement in reversed(body):
        read, written = _names(statement)
        if written & needed:
            kept.insert(0, statement)
            needed |= read
    if not kept:
        raise LookupError(f"TritonAttnBackend.__init__ does not set {wanted}")
    return kept


def _names(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """(read, written): plain names, and attributes of self as `self.x`."""
    read: set[str] = set()
    written: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            name = f"self.{node.attr}"
        elif isinstance(node, ast.Name) and node.id not in ("self", "model_runner"):
            name = node.id
        else:
            continue
        (written if isinstance(node.ctx, ast.Store) else read).add(name)
    return read, written
