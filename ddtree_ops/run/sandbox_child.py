"""The process that runs one answer's code, started with `python -I -S`: JSON in, JSON out, nothing else.

stdin: {"source", "function", "calls": [[args]], "imports": {module: [names]}, "cpu_s", "memory_bytes"}.
stdout: one line, {"results": [{"value"} | {"error"}]} or {"fault"}. Uses the standard library alone.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import importlib
import json
import os
import resource
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET
_BUILTIN_NAMES = """
    abs all any ascii bin bool bytearray bytes callable chr classmethod complex dict divmod enumerate filter
    float format frozenset hash hex id int isinstance issubclass iter len list map max min next oct ord pow
    property range repr reversed round set slice sorted staticmethod str sum tuple type zip
    True False None NotImplemented Ellipsis
    ArithmeticError AssertionError AttributeError BaseException Exception FloatingPointError IndexError
    KeyError LookupError NotImplementedError OverflowError RecursionError RuntimeError StopIteration TypeError
    UnicodeError ValueError ZeroDivisionError
"""
_HARMLESS = frozenset({"compile", "exec", "object.__getattr__", "builtins.id", "sys.unraisablehook"})
_LONGEST = 20_000  # characters of one result's JSON


def main() -> None:
    task = json.load(sys.stdin)
    scope = _scope(task["imports"])  # before the limits, as it reads modules from files
    _limit(task["cpu_s"], task["memory_bytes"])
    write, leave = os.write, os._exit

    def answer(said: dict[str, object]) -> None:
        write(1, json.dumps(said).encode() + b"\n")
        leave(0)

    try:
        code = compile(task["source"], "answer", "exec")
    except (SyntaxError, ValueError) as error:
        answer({"fault": f"it does not compile ({error})"})
        return
    sys.addaudithook(_warden(answer))
    try:
        exec(code, scope)  # the point of this process, behind its limits and its warden
    except BaseException as error:
        answer({"fault": f"its definition raises {_named(error)}"})
    function = scope.get(task["function"])
    if not callable(function):
        answer({"fault": f"it defines no function {task['function']}"})
        return
    answer({"results": [_called(function, args) for args in task["calls"]]})


def _limit(cpu_s: int, memory_bytes: int) -> None:
    """No network where the kernel lets us, no files, no more processes, bounded time and memory."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).unshare(_NEW_USER | _NEW_NET)
    sys.setrecursionlimit(2000)
    for limit, value in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 3),
    ):
        with contextlib.suppress(OSError, ValueError):  # a system may know fewer, or have lower ones already
            resource.setrlimit(limit, (value, value))


def _scope(imports: dict[str, list[str]]) -> dict[str, Any]:
    """The names that an answer sees: plain builtins, and an import that hands out a few functions."""
    modules = {
        name: SimpleNamespace(**{each: getattr(importlib.import_module(name), each) for each in names})
        for name, names in imports.items()
        if name != "__future__"
    }

    def limited_import(name: str, *_: object) -> object:
        if name == "__future__":
            return SimpleNamespace(annotations=None)
        if name not in modules:
            raise ImportError(f"no module {name} here")
        return modules[name]

    allowed = {name: getattr(builtins, name) for name in _BUILTIN_NAMES.split()}
    return {
        "__builtins__": {
            **allowed,
            "__import__": limited_import,
            "__build_class__": builtins.__build_class__,
            "print": lambda *_, **__: None,
        },
        "__name__": "answer",
    }


def _warden(answer: Callable[[dict[str, object]], None]) -> Callable[[str, tuple[object, ...]], None]:
    """Ends the process at the first event that plain computing does not cause."""
    told = False

    def watch(event: str, _: tuple[object, ...]) -> None:
        nonlocal told
        if event not in _HARMLESS and not told:
            told = True
            answer({"fault": f"it tried {event}"})

    return watch


def _called(function: Callable[..., object], args: list[object]) -> dict[str, object]:
    try:
        value = function(*args)
        text = json.dumps(value)
    except BaseException as error:
        return {"error": f"raises {_named(error)}"}
    if len(text) > _LONGEST:
        return {"error": f"gives a value of {len(text)} characters"}
    return {"value": json.loads(text)}


def _named(error: BaseException) -> str:
    with contextlib.suppress(BaseException):
        return f"{type(error).__name__}: {error}"[:200]
    return "an exception that cannot be shown"


if __name__ == "__main__":
    main()
