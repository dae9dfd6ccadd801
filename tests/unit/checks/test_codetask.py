"""Code is found in answers however they wrap it, and what could reach out is refused unseen."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_ops.checks.codetask import Case, CaseResult, TaskResult, extract_code, refusal

GCD = "def gcd(a, b):\n    while b:\n        a, b = b, a % b\n    return a"


@pytest.mark.parametrize(
    "answer",
    [
        GCD,
        f"```python\n{GCD}\n```",
        f"```\n{GCD}\n```",
        f"Here is the function:\n\n```python\n{GCD}\n```\n\nIt uses Euclid's algorithm.",
        f"Here is the function:\n\n{GCD}\n\nIt uses Euclid's algorithm.",
        f"```python\n{GCD}",
        f"1. As asked:\n\n   ```python\n{GCD.replace('def', '   def').replace(chr(10), chr(10) + '   ')}\n   ```",
        f"```bash\npip install x\n```\n```python\n{GCD}\n```",
    ],
)
def test_the_function_is_found_however_it_is_wrapped(answer: str) -> None:
    code = extract_code(answer, "gcd")
    assert code is not None
    assert code.strip() == GCD


def test_imports_and_helpers_before_the_function_come_with_it() -> None:
    answer = "Sure!\nimport math\n\nLIMIT = 3\n\ndef helper(x):\n    return x\n\ndef gcd(a, b):\n    return math.gcd(a, b)\nDone."
    code = extract_code(answer, "gcd")
    assert code is not None
    assert code.startswith("import math")
    assert code.rstrip().endswith("math.gcd(a, b)")


@pytest.mark.parametrize("answer", ["", "I cannot do that.", "def lcm(a, b):\n    return 1", "use gcd(a, b)"])
def test_an_answer_without_the_function_has_no_code(answer: str) -> None:
    assert extract_code(answer, "gcd") is None


@pytest.mark.parametrize(
    "source",
    [
        GCD,
        "import math\nfrom math import gcd as g\ndef f(a, b): return math.gcd(a, b)",
        "from typing import List\nfrom itertools import chain\ndef f(x: List[int]): return list(chain(*x))",
        "from __future__ import annotations\ndef f(s): return sum(c in 'aeiou' for c in s)",
        "def f(x):\n    return x\n\nif __name__ == '__main__':\n    print(f(1))",
        "import re\ndef f(s): return len(re.findall('[aeiou]', s))",
    ],
)
def test_plain_code_is_let_pass(source: str) -> None:
    assert refusal(source) is None


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import os", "import of os"),
        ("import os.path as p", "import of os.path"),
        ("import math, socket", "import of socket"),
        ("from os import system", "import of os"),
        ("from re import enum", "import of enum from re"),
        ("from math import *", "import of * from math"),
        ("from . import x", "import of ."),
        ("def f(): return open('/etc/passwd').read()", "use of open"),
        ("def f(): return eval('1')", "use of eval"),
        ("def f(): return __import__('os')", "use of __import__"),
        ("def f(): return ().__class__.__bases__", "attribute __bases__"),
        ("def f(): return (x for x in ()).gi_frame", "attribute gi_frame"),
        ("def f(): return f.func_globals", "attribute func_globals"),
        ("def f(): return type(1).mro()", "attribute mro"),
        ("def f(x): return x._private", "attribute _private"),
        ("def f(x): return getattr(x, 'y')", "use of getattr"),
        ("def f(x): return '{0.__class__}'.format(x)", "a text with a double underscore"),
        ("def f(x):\n match x:\n  case str(__class__=c): return c", "a private attribute in a pattern"),
        ("class A:\n def __eq__(self, o): return True", "definition of __eq__"),
        ("async def f(): return 1", "asyncfunctiondef"),
        ("def f(:", "it does not parse (invalid syntax)"),
        ("x = '" + "a" * 20_001 + "'", "it is longer than 20,000 characters"),
    ],
)
def test_code_that_could_reach_out_is_refused_with_its_reason(source: str, reason: str) -> None:
    assert refusal(source) == reason


@pytest.mark.parametrize(
    ("got", "expected", "passed"),
    [
        (6, 6, True),
        (6.0, 6, True),
        (True, True, True),
        (1, True, False),
        (True, 1, False),
        ([1], [1], True),
        (None, 0, False),
    ],
)
def test_a_result_is_equal_and_of_the_same_kind(got: object, expected: object, passed: bool) -> None:
    assert CaseResult(case=Case(args=(), expected=expected), got=got).passed == passed


def test_a_task_without_results_has_not_passed() -> None:
    assert not TaskResult(function="f").passed
    assert TaskResult(function="f", fault="refused: import of os").evidence == "f: refused: import of os"


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.text(max_size=200))
def test_any_answer_is_looked_through(text: str) -> None:
    code = extract_code(f"def f(x):\n{text}", "f")
    assert code is not None
    refusal(code)
