"""How wide the tree's own code makes things: read out of its runner by running those statements."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .stand_ins import SILENT, Silent, definitions, source

RUNNERS = (
    "sglang/srt/model_executor/runner/decode_cuda_graph_runner.py",
    "sglang/srt/model_executor/cuda_graph_runner.py",
)
MODEL_RUNNER = "sglang/srt/model_executor/model_runner.py"
SPEC_UTILS = "sglang/srt/speculative/spec_utils.py"
NAMES = ("captured_req_width", "num_tokens_per_bs")
METHODS = ("decode_num_tokens_per_bs", "decode_num_tokens_per_req")
CHECK = "spec_info.num_tokens_per_req != self.captured_req_width"


class Algorithm(Silent):
    """A speculative algorithm with a draft worker that verifies too, as DFLASH is."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("get_num_tokens_per_"):
            return lambda tokens, *_, **__: tokens
        if name in ("is_none", "is_dspark", "is_frozen_kv_mtp"):
            return lambda: False
        return lambda: True


class _Names(dict[str, Any]):
    """Names that the statements use; what nobody set says nothing."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, SILENT)


class Sizing:
    """The statements of a tree that decide how many tokens a request has in captured graphs."""

    def __init__(self, roots: Sequence[Path], settings: dict[str, Any]) -> None:
        """`settings` answers what later releases ask their runtime context for."""
        file = next((found for name in RUNNERS if (found := source(roots, name))), None)
        if file is None:
            raise LookupError(f"got none of {', '.join(RUNNERS)}, expected sglang in {roots[0]}")
        tree = ast.parse(file.read_text(encoding="utf-8"))
        statements, self.name = _sizing(tree)
        self.code = compile(ast.Module(statements, []), str(file), "exec")
        self.refuses = any(
            isinstance(node, ast.Compare) and ast.unparse(node) == CHECK for node in ast.walk(tree)
        )
        self.methods = _methods(roots, settings)

    def captured(self, arguments: Any, block: int, *, is_draft: bool = False) -> int:
        """Tokens a request has in the graphs of the target's runner, or of the draft's."""
        runner = SimpleNamespace(server_args=arguments, is_draft_worker=is_draft, spec_algorithm=Algorithm())
        for name, method in self.methods.items():
            setattr(runner, name, lambda _method=method, **given: _method(runner, **given))
        this = SimpleNamespace(
            model_runner=runner,
            speculative_num_draft_tokens=block,
            is_dllm=False,
            device="cpu",
            dllm_config=None,
        )
        exec(self.code, {}, _Names(self=this, model_runner=runner))
        return int(getattr(this, self.name))


def _sizing(tree: ast.Module) -> tuple[list[ast.stmt], str]:
    """The statements of the runner's __init__ that set its width, and the attribute's name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for name in NAMES:
                found = [one for one in node.body if _assigns(one, name)]
                if found:
                    return found, name
    raise LookupError(f"no runner sets any of {', '.join(NAMES)}")


def _assigns(statement: ast.stmt, name: str) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(statement)
    )


def _methods(roots: Sequence[Path], settings: dict[str, Any]) -> dict[str, Any]:
    """The model runner's own methods that size a decode batch, where the release has them."""
    file, utils = source(roots, MODEL_RUNNER), source(roots, SPEC_UTILS)
    tree = ast.parse(file.read_text(encoding="utf-8") if file else "")
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in METHODS]
    helper = definitions(utils, ["resolve_num_tokens_per_req"], settings) if utils else {}
    space: dict[str, Any] = {**settings, **helper, "Optional": SILENT, "DllmConfig": SILENT}
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module([*future, *found], []), MODEL_RUNNER, "exec"), space)
    return {node.name: space[node.name] for node in found}
