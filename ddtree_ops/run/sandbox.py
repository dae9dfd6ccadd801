"""Runs the code of coding answers in a process of its own that can compute and nothing else.

What `checks.codetask.refusal` objects to never runs. The rest runs isolated (`python -I -S`), with an empty
environment, in an empty directory, without network namespace, files or child processes, under CPU, memory and
wall limits, and an audit hook ends it at the first event that computing does not cause.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ddtree_ops.checks.codetask import ALLOWED_IMPORTS, Case, CaseResult, TaskResult, extract_code, refusal

_CHILD = Path(__file__).with_name("sandbox_child.py")
_MEMORY_BYTES = 512 * 2**20


def run_task(answer: str, function: str, cases: Sequence[Case], *, deadline_s: float = 10.0) -> TaskResult:
    """Runs an answer's function on every case. What the answer does wrong is a result, never an exception."""
    source = extract_code(answer, function)
    if source is None:
        return TaskResult(function=function, fault=f"the answer defines no function {function}")
    if objection := refusal(source):
        return TaskResult(function=function, fault=f"refused: {objection}")
    said = _child_says(_task(source, function, cases, deadline_s), deadline_s)
    if "fault" in said:
        return TaskResult(function=function, fault=str(said["fault"]))
    return TaskResult(function=function, results=_results(said, cases))


def _task(source: str, function: str, cases: Sequence[Case], deadline_s: float) -> bytes:
    return json.dumps(
        {
            "source": source,
            "function": function,
            "calls": [list(case.args) for case in cases],
            "imports": {module: names.split() for module, names in ALLOWED_IMPORTS.items()},
            "cpu_s": max(1, int(deadline_s)),
            "memory_bytes": _MEMORY_BYTES,
        }
    ).encode()


def _child_says(task: bytes, deadline_s: float) -> dict[str, object]:
    argv = (sys.executable, "-I", "-S", str(_CHILD))
    with tempfile.TemporaryDirectory(prefix="ddtree-ops-task-") as empty:
        child = subprocess.Popen(
            argv,
            cwd=empty,
            env={},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            out, _ = child.communicate(task, timeout=deadline_s)
        except subprocess.TimeoutExpired:
            return {"fault": f"it did not end within {deadline_s:g} s"}
        finally:
            _end(child)
    return _read(out, child.returncode)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends the child, and whatever it started, for certain."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def _read(out: bytes, code: int) -> dict[str, object]:
    """The child's one line; anything else is a fault, as nothing but the child's own code can write it."""
    try:
        said = json.loads(out)
    except ValueError:
        return {"fault": f"it ended without an answer ({_ending(code)})"}
    return said if isinstance(said, dict) else {"fault": "it ended without an answer"}


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def _results(said: dict[str, object], cases: Sequence[Case]) -> tuple[CaseResult, ...]:
    listed = said.get("results")
    rows = listed if isinstance(listed, list) else []
    return tuple(
        CaseResult(case=case, got=row.get("value"), error=str(row.get("error", "")))
        for case, row in zip(cases, rows, strict=False)
    )
