"""Answers' code runs where it can compute and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ddtree_ops.run.sandbox as room
from ddtree_ops.checks.codetask import ALLOWED_IMPORTS, Case
from ddtree_ops.checks.smoke import smoke_plan
from ddtree_ops.run.sandbox import run_task

CHILD = Path(room.__file__).with_name("sandbox_child.py")
PROMPTS = {request.prompt.id: request.prompt for request in smoke_plan().requests}
SOUND = {
    "add_digits": "def add_digits(n):\n    return sum(int(c) for c in str(n))",
    "is_palindrome": "def is_palindrome(s):\n    print(s)\n    return s == s[::-1]",
    "gcd": "import math\ndef gcd(a, b):\n    return math.gcd(a, b)",
    "count_vowels": "import re\ndef count_vowels(s):\n    return len(re.findall('[aeiou]', s))",
    "flatten": "from itertools import chain\ndef flatten(items):\n    return list(chain.from_iterable(items))",
}
ONE = (Case(args=(1,), expected=1),)


@pytest.mark.parametrize("task", SOUND)
def test_sound_code_passes_every_case_of_its_task(task: str) -> None:
    result = run_task(f"```python\n{SOUND[task]}\n```", task, PROMPTS[task].cases)
    assert (result.passed, result.fault) == (True, "")


@pytest.mark.parametrize(
    ("body", "evidence"),
    [
        ("return n + 1", "f: 0 of 1 cases; f(1): got 2, expected 1"),
        ("return n / 0", "f: 0 of 1 cases; f(1): got raises ZeroDivisionError: division by zero, expected 1"),
        ("return f(n)", "f: 0 of 1 cases; f(1): got raises RecursionError: maximum recursion depth exceeded"),
        (
            "return {1, 2}",
            "f: 0 of 1 cases; f(1): got raises TypeError: Object of type set is not JSON serializable",
        ),
        ("return 'x' * 30000", "f: 0 of 1 cases; f(1): got gives a value of 30002 characters"),
        ("return [0] * 10**9", "f: 0 of 1 cases; f(1): got raises MemoryError"),
    ],
)
def test_wrong_code_shows_what_it_did(body: str, evidence: str) -> None:
    result = run_task(f"def f(n):\n    {body}", "f", ONE)
    assert not result.passed
    assert result.evidence.startswith(evidence)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("I would rather not.", "the answer defines no function f"),
        ("import os\ndef f(n): return os.getpid()", "refused: import of os"),
        ("def f(n): return open('x')", "refused: use of open"),
        (
            "```python\nx = 1 / 0\ndef f(n): return n\n```",
            "its definition raises ZeroDivisionError: division by zero",
        ),
        ("def f(n): return n\nf = 3", "it defines no function f"),
    ],
)
def test_code_that_cannot_be_run_is_a_fault_in_words(answer: str, fault: str) -> None:
    assert run_task(answer, "f", ONE).fault == fault


def test_code_that_never_ends_is_ended() -> None:
    result = run_task("def f(n):\n    while True:\n        pass", "f", ONE, deadline_s=1.0)
    assert result.fault in ("it did not end within 1 s", "it ended without an answer (SIGKILL)")


def test_code_that_swallows_every_exception_is_ended_too() -> None:
    source = "def f(n):\n    while True:\n        try:\n            f(n)\n        except BaseException:\n            pass"
    assert not run_task(source, "f", ONE, deadline_s=1.0).passed


def child_says(source: str, function: str = "f") -> dict[str, object]:
    """What the child answers to code that the static list would have refused: the second wall alone."""
    task = {
        "source": source,
        "function": function,
        "calls": [[1]],
        "imports": {module: names.split() for module, names in ALLOWED_IMPORTS.items()},
        "cpu_s": 5,
        "memory_bytes": 512 * 2**20,
    }
    done = subprocess.run(
        (sys.executable, "-I", "-S", str(CHILD)),
        input=json.dumps(task).encode(),
        capture_output=True,
        timeout=20,
        env={},
    )
    said = json.loads(done.stdout)
    assert isinstance(said, dict)
    return said


REACH = "def reach(name):\n    b = [c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'BuiltinImporter'][0]\n    return b.load_module(name)\n"


@pytest.mark.parametrize(
    "body",
    [
        "open('/etc/passwd').read()",
        "__import__('os').system('true')",
        "eval('1')",
    ],
)
def test_the_child_has_no_such_builtins(body: str) -> None:
    said = json.dumps(child_says(f"def f(n):\n    return {body}"))
    assert "NameError" in said or "ImportError" in said


@pytest.mark.parametrize(
    "body",
    [
        "reach('posix').open('/etc/passwd', 0)",
        "reach('posix').system('true')",
        "reach('posix').fork()",
        "reach('posix').unlink('/tmp/none')",
        "reach('_socket').socket()",
        "reach('_ctypes').dlopen(None, 0)",
    ],
)
def test_the_warden_ends_code_that_got_past_everything_else(body: str) -> None:
    said = json.dumps(child_says(f"{REACH}def f(n):\n    return {body}"))
    assert "it tried" in said or "raises" in said
    assert '"value"' not in said


def test_a_forged_answer_on_standard_output_is_not_taken() -> None:
    forged = 'print(\'{"results": [{"value": 1}]}\')\ndef f(n):\n    return 2'
    assert not run_task(forged, "f", ONE).passed


def test_the_sandbox_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    run_task(SOUND["gcd"], "gcd", PROMPTS["gcd"].cases)
    assert list(tmp_path.iterdir()) == []
