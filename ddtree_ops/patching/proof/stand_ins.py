"""SGLang's own attention modules, imported with only torch and triton.

A proof runs the tree's real backend and kernels; everything else that they import from `sglang`
is answered by stand-ins: classes without content, functions that say nothing.
"""

from __future__ import annotations

import ast
import enum
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BACKEND = "sglang.srt.layers.attention.triton_backend"

REAL = (
    BACKEND,
    "sglang.srt.layers.attention.base_attn_backend",
    "sglang.srt.layers.attention.triton_ops",
    "sglang.srt.layers.attention.utils",
    "sglang.srt.layers.attention.verify_mask",
    "sglang.kernels.ops",
)

# Definitions taken from files that cannot be imported whole.
TAKEN = {
    "sglang.srt.model_executor.forward_batch_info": ("ForwardMode",),
    "sglang.srt.configs.model_config": ("AttentionArch",),
    "sglang.srt.layers.radix_attention": ("AttentionType",),
}


class Missing(type):
    """A class nobody defined: any attribute of it is a stand-in too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return SILENT

    def __iter__(cls) -> Any:
        return iter(())


class Blank(metaclass=Missing):
    """Base of classes whose module is not there."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__()

    def __init__(self, *_: Any, **fields: Any) -> None:
        self.__dict__.update(fields)


class Silent:
    """A function or constant nobody defined: falsy, callable, and a decorator that changes nothing."""

    def __call__(self, *values: Any, **named: Any) -> Any:
        return values[0] if len(values) == 1 and callable(values[0]) and not named else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __bool__(self) -> bool:
        return False

    def __index__(self) -> int:
        return 0

    def __iter__(self) -> Any:
        return iter(())

    def __or__(self, other: Any) -> Any:
        return other

    __ror__ = __or__


SILENT = Silent()


class Environment:
    """SGLang's `envs`: nothing is set; multipliers are one."""

    def __getattr__(self, name: str) -> Any:
        return types.SimpleNamespace(get=lambda: 1.0 if name.endswith("_MULT") else False)


def no(*_: Any, **__: Any) -> bool:
    """What every `is_…` of a stand-in says; kernels take it as a constant, so it is a true bool."""
    return False


class StandIn(types.ModuleType):
    """A module whose missing names are stand-ins: classes where the name looks like one."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        looks_like_class = name[0].isupper() and not name.isupper()
        value = Missing(name, (Blank,), {}) if looks_like_class else no if name.startswith("is_") else SILENT
        setattr(self, name, value)
        return value


class TreeMaskMode(enum.IntEnum):
    """SGLang's mask layouts; the Triton backend reads whole rows, prefix included."""

    FULL_MASK = 0
    QLEN_ONLY = 1
    QLEN_ONLY_BITPACKING = 2


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers every import below `sglang` (and of what its kernels would import) from one tree."""

    def __init__(self, roots: Sequence[Path], answers: dict[str, dict[str, Any]]) -> None:
        self.roots, self.answers = roots, answers

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        del path, target
        top = name.partition(".")[0]
        if top == "sglang":
            file = self._file(name)
            if file is not None and name.startswith(REAL):
                folder = [str(file.parent)] if file.name == "__init__.py" else None
                return importlib.util.spec_from_file_location(name, file, submodule_search_locations=folder)
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if top in ("sgl_kernel", "msgspec", "aiter"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        name = module.__name__
        file = self._file(name)
        if name in TAKEN and file is not None:
            module.__dict__.update(definitions(file, TAKEN[name]))
        module.__dict__.update(self.answers.get(name, {}))

    def _file(self, name: str) -> Path | None:
        path = "/".join(name.split("."))
        return source(self.roots, f"{path}.py") or source(self.roots, f"{path}/__init__.py")


def source(roots: Sequence[Path], path: str) -> Path | None:
    """The file in the first tree that has it: a patched tree may hold the patched files alone."""
    return next((root / path for root in roots if (root / path).is_file()), None)


def definitions(file: Path, names: Sequence[str], also: dict[str, Any] | None = None) -> dict[str, Any]:
    """Classes and functions of a file, executed without the rest of it; absent ones are left out."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    wanted = [node for node in tree.body if getattr(node, "name", None) in names]
    space: dict[str, Any] = {**vars(typing), **vars(enum), "SILENT": SILENT, **(also or {})}
    space["__name__"] = "sglang_taken"
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module([*future, *wanted], []), str(file), "exec"), space)
    return {name: space[name] for name in names if name in space}


def install(roots: Sequence[Path], answers: dict[str, dict[str, Any]]) -> types.ModuleType:
    """The tree's triton backend module; sglang modules of an earlier tree are dropped."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]
    sys.meta_path.insert(0, Finder(roots, {**_platform(), **answers}))
    return importlib.import_module(BACKEND)


def _platform() -> dict[str, dict[str, Any]]:
    """What SGLang asks about the machine; one GPU of NVIDIA's, or the interpreter on a CPU."""
    import torch

    cuda = torch.cuda.is_available() and torch.version.cuda is not None
    cores = torch.cuda.get_device_properties(0).multi_processor_count if cuda else 132
    asked = {
        "is_cuda": lambda: cuda,
        "is_cpu": lambda: False,
        "get_bool_env_var": lambda name, default="false": os.getenv(name, default).lower() in ("1", "true"),
        "get_int_env_var": lambda name, default=0: int(os.getenv(name, default)),
        "get_device_core_count": lambda *_: cores,
        "next_power_of_2": lambda number: 1 << max(0, number - 1).bit_length(),
    }
    return {
        "sglang.srt.utils": asked,
        "sglang.srt.environ": {"envs": Environment()},
        "sglang.srt.utils.common": asked,
        "sgl_kernel.utils": {"is_arch_support_pdl": lambda: False},
        "sglang.srt.speculative.eagle_utils": {
            "TreeMaskMode": TreeMaskMode,
            "default_tree_mask_mode": lambda: TreeMaskMode.FULL_MASK,
        },
        "sglang.srt.layers.dp_attention": {"get_attention_tp_size": lambda: 1},
    }
