"""The engine patch set's modules, loaded by file: they run without SGLang."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

SET = Path(__file__).parents[3] / "patches" / "ddtree-engine"
MODULES = SET / "overlay" / "sglang" / "srt" / "speculative"
PACKAGES = ("sglang", "sglang.srt", "sglang.srt.speculative")


def load(name: str) -> types.ModuleType:
    """One overlay module under a name of its own; its import of the flags is served from the overlay too."""
    before = {key: module for key, module in sys.modules.items() if key.split(".")[0] == "sglang"}
    try:
        for package in PACKAGES:
            sys.modules[package] = types.ModuleType(package)
        if name != "ddtree_flags":
            sys.modules["sglang.srt.speculative.ddtree_flags"] = _executed("ddtree_flags")
        return _executed(name)
    finally:
        for key in [key for key in sys.modules if key.split(".")[0] == "sglang"]:
            del sys.modules[key]
        sys.modules.update(before)


def _executed(name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"ddtree_overlay_{name}", MODULES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module
