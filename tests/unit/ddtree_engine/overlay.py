"""The engine patch set's modules, loaded by file: they run without SGLang."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from pathlib import Path

SET = Path(__file__).parents[3] / "patches" / "ddtree-engine"
MODULES = SET / "overlay" / "sglang" / "srt" / "speculative"
PREFIX = "sglang.srt.speculative."


def load(name: str) -> types.ModuleType:
    """One overlay module under its own test name; its imports of siblings are served from the overlay too."""
    os.environ.setdefault("TRITON_INTERPRET", "1")
    spec = importlib.util.spec_from_file_location(f"ddtree_overlay_{name}", MODULES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = {key: value for key, value in sys.modules.items() if key.split(".")[0] == "sglang"}
    sys.modules[spec.name] = module
    try:
        _serve_siblings(name)
        spec.loader.exec_module(module)
    finally:
        for key in [key for key in sys.modules if key.split(".")[0] == "sglang"]:
            del sys.modules[key]
        sys.modules.update(before)
    return module


def _serve_siblings(name: str) -> None:
    for package in ("sglang", "sglang.srt", "sglang.srt.speculative"):
        sys.modules[package] = types.ModuleType(package)
    if name != "ddtree_flags":
        sys.modules[PREFIX + "ddtree_flags"] = load("ddtree_flags")
        for package in ("sglang", "sglang.srt", "sglang.srt.speculative"):
            sys.modules.setdefault(package, types.ModuleType(package))
