"""Coding tasks: the code in an answer, what in it is refused unseen, and what its results are worth.

Nothing runs here. The sandbox runs only what `refusal` lets pass, behind limits of its own: this list keeps
code from reaching out, the sandbox from harming when it does all the same.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call of the function, as JSON values."""

    args: tuple[object, ...]
    expected: object


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    case: Case
    got: object = None  # a JSON value
    error: str = ""  # why there is no value

    @property
    def passed(self) -> bool:
        """Equal, and of the same kind: True is not 1."""
        same_kind = isinstance(self.got, bool) == isinstance(self.case.expected, bool)
        return not self.error and same_kind and self.got == self.case.expected


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What became of one answer; `fault` says why no case ran, or why they stopped."""

    function: str
    results: tuple[CaseResult, ...] = ()
    fault: str = ""

    @property
    def passed(self) -> bool:
        return not self.fault and bool(self.results) and all(result.passed for result in self.results)

    @property
    def evidence(self) -> str:
        """One line: how many cases passed, and the first that did not."""
        if self.fault:
            return f"{self.function}: {self.fault}"
        good = sum(result.passed for result in self.results)
        told = f"{self.function}: {good} of {len(self.results)} cases"
        wrong = next((result for result in self.results if not result.passed), None)
        if wrong is None:
            return told
        args = ", ".join(repr(arg) for arg in wrong.case.args)
        got = wrong.error or repr(wrong.got)
        return f"{told}; {self.function}({args}): got {got[:80]}, expected {wrong.case.expected!r}"


def extract_code(answer: str, function: str) -> str | None:
    """The code that defines the function: a fenced block that does, or the answer's part from its first line
    of code on; None when there is no such definition.
    """
    wanted = re.compile(rf"^[ \t]*(?:async )?def {re.escape(function)}\b", re.MULTILINE)
    for block in _FENCED.findall(answer):
        if wanted.search(block):
            return _dedented(block)
    bare = _FENCE.sub("", answer)
    if not wanted.search(bare):
        return None
    begin = _BEGIN.search(bare)
    return _parsable_part(bare[begin.start() if begin else 0 :])


_FENCED = re.compile(r"```[^\n]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_FENCE = re.compile(r"^[ \t]*```.*$", re.MULTILINE)
_BEGIN = re.compile(r"^(?:(?:async )?def |from |import |class |@|[A-Z_]+ = )", re.MULTILINE)


def _dedented(block: str) -> str:
    lines = block.splitlines()
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    cut = min(indents, default=0)
    return "\n".join(line[cut:] for line in lines) + "\n"


def _parsable_part(text: str) -> str:
    """The text without the lines at its end that keep it from parsing: an explanation after the code."""
    lines = text.splitlines()
    for end in range(len(lines), 0, -1):
        part = "\n".join(lines[:end]) + "\n"
        try:
            ast.parse(part)
        except (SyntaxError, ValueError):
            continue
        return part
    return text


# What answers may import, and from each module only what cannot lead elsewhere: `re.enum.sys` is a way out.
ALLOWED_IMPORTS = {
    "math": "ceil comb copysign e factorial fabs floor fmod fsum gcd hypot inf isclose isfinite isinf isnan "
    "isqrt lcm log log10 log2 modf nan perm pi pow prod sqrt tau trunc",
    "itertools": "accumulate chain combinations count cycle groupby islice permutations product repeat "
    "starmap takewhile dropwhile zip_longest pairwise",
    "functools": "cache cmp_to_key lru_cache partial reduce wraps",
    "collections": "ChainMap Counter OrderedDict defaultdict deque",
    "string": "ascii_letters ascii_lowercase ascii_uppercase digits hexdigits punctuation whitespace",
    "re": "compile escape findall finditer fullmatch match search split sub IGNORECASE I",
    "operator": "add mul sub floordiv mod itemgetter",
    "typing": "Any Callable Dict Generator Iterable Iterator List Optional Sequence Set Tuple TypeVar Union",
    "__future__": "annotations",
}
_REFUSED_NAMES = frozenset(
    {
        *("open", "exec", "eval", "compile", "input", "breakpoint", "help", "exit", "quit", "memoryview"),
        *("getattr", "setattr", "delattr", "hasattr", "globals", "locals", "vars", "dir", "super", "object"),
    }
)
_REFUSED_ATTRIBUTES = re.compile(r"_.*|(?:gi|cr|ag|f|tb|co|func)_.*|mro|format_map")


def refusal(source: str) -> str | None:
    """Why this code will not be run, or None. Refused code counts as a failed task, not as an attack."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"it does not parse ({getattr(error, 'msg', error)})"
    if len(source) > 20_000:
        return "it is longer than 20,000 characters"
    return next(_objections(tree), None)


def _objections(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (f"import of {each.name}" for each in names if each.name not in ALLOWED_IMPORTS)
            case ast.ImportFrom(module=module, names=names, level=level):
                yield from _from_objections(module or "", [alias.name for alias in names], level)
            case ast.Attribute(attr=name) if _REFUSED_ATTRIBUTES.fullmatch(name):
                yield f"attribute {name}"
            case ast.MatchClass(kwd_attrs=names) if any(_REFUSED_ATTRIBUTES.fullmatch(n) for n in names):
                yield "a private attribute in a pattern"
            case ast.Name(id=name) if _refused_name(name):
                yield f"use of {name}"
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if name.startswith("__"):
                yield f"definition of {name}"
            case ast.Constant(value=str(text)) if "__" in text and text != "__main__":
                yield "a text with a double underscore"
            case ast.Global() | ast.AsyncFunctionDef() | ast.Await():
                yield type(node).__name__.lower()


def _from_objections(module: str, names: Sequence[str], level: int) -> Iterator[str]:
    allowed = ALLOWED_IMPORTS.get(module, "").split()
    if level or not allowed:
        yield f"import of {module or '.'}"
    yield from (f"import of {name} from {module}" for name in names if allowed and name not in allowed)


def _refused_name(name: str) -> bool:
    return name in _REFUSED_NAMES or (name.startswith("__") and name != "__name__")
