"""Joins the agent's files into one program, and speaks with it in JSON."""

from __future__ import annotations

import ast
import functools
import json
import zlib
from graphlib import TopologicalSorter
from importlib.resources import files
from typing import Any

PACKAGE = "ddtree_ops.node.agent"
TOO_OLD = 98  # exit code of the bootstrap on a Python before 3.8
MARK = b"\n--ddtree-ops-reply--\n"
BOOTSTRAP = (
    f"import sys,zlib;sys.version_info<(3,8) and sys.exit({TOO_OLD});b=sys.stdin.buffer;"
    "SOURCE=zlib.decompress(b.read(int(b.readline())));exec(compile(SOURCE,'ddtree-ops-agent','exec'))"
)
# -I and -S: neither the login's environment nor a broken site-packages reaches the agent
ARGV = ("python3", "-I", "-S", "-c", BOOTSTRAP)


@functools.lru_cache(maxsize=1)
def agent_source() -> str:
    """The whole program: the standard library's imports, then each file after those it needs."""
    modules = {
        path.name[:-3]: path.read_text(encoding="utf-8")
        for path in files(PACKAGE).iterdir()
        if path.name.endswith(".py") and path.name != "__init__.py"
    }
    parsed = {name: ast.parse(text) for name, text in modules.items()}
    order = TopologicalSorter({name: _needs(tree) for name, tree in sorted(parsed.items())}).static_order()
    bodies = [f"# --- {name}\n{_body(parsed[name], modules[name])}" for name in order]
    outside = sorted(
        {ast.unparse(node) for tree in parsed.values() for node in _imports(tree) if _outside(node)}
    )
    head = '"""ddtree-ops: the node\'s side, joined from ddtree_ops/node/agent. Do not edit."""\n\n'
    return head + "from __future__ import annotations\n\n" + "\n".join(outside) + "\n\n" + "\n\n".join(bodies)


def _imports(tree: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]


def _outside(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.Import):
        return True
    return node.level == 0 and node.module != "__future__"


def _needs(tree: ast.Module) -> set[str]:
    inside = [node for node in _imports(tree) if isinstance(node, ast.ImportFrom) and node.level]
    return {node.module for node in inside if node.module}


def _body(tree: ast.Module, text: str) -> str:
    """Everything below the imports; they stand at a file's top."""
    last = max((node.end_lineno or 0 for node in _imports(tree)), default=0)
    return "\n".join(text.splitlines()[last:]).strip("\n") + "\n"


@functools.lru_cache(maxsize=1)
def _program() -> bytes:
    packed = zlib.compress(agent_source().encode(), 9)
    return str(len(packed)).encode() + b"\n" + packed


def encode_request(request: dict[str, Any]) -> bytes:
    """Stdin for ARGV: the program and its request."""
    return _program() + zlib.compress(json.dumps(request).encode(), 6)


def decode_reply(stdout: bytes) -> dict[str, Any] | None:
    """The reply, whatever a login script wrote before it; None when there is none."""
    _, found, packed = stdout.rpartition(MARK)
    if not found:
        return None
    try:
        reply = json.loads(zlib.decompress(packed))
    except (zlib.error, ValueError):
        return None
    return reply if isinstance(reply, dict) else None
