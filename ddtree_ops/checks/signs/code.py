"""Signs in code: Python that no parser takes, and brackets that close what was never opened."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

from ddtree_ops.checks.signs.sign import Sign

_FENCE = re.compile(r"```(?P<tag>\w*)[^\n]*\n(?P<code>.*?)(?:\n```|\Z)", re.DOTALL)
_BARE = re.compile(r"^(?:def \w+\(|from [\w.]+ import |import \w+|class \w+[:(])", re.MULTILINE)
_OPENS = {")": "(", "]": "[", "}": "{"}


def code(text: str, prompt: str | None) -> Iterator[Sign]:
    yield from _unparsable(text, prompt)
    yield from _unbalanced(text)


def _unparsable(text: str, prompt: str | None) -> Iterator[Sign]:
    wanted = prompt is not None and "python" in prompt.lower()
    for start, source in _python(text, wanted):
        line = _broken_line(source)
        if line is not None:
            shown = source.splitlines()[line - 1].strip()
            at = start + sum(len(each) + 1 for each in source.splitlines()[: line - 1])
            # Where nobody asked for Python 3 it may be older, or a sketch.
            weight = 1.0 if wanted or _PROSE.match(shown) else 0.7
            reason = f"Python that does not parse at {shown[:50]!r}"
            yield Sign(reason=reason, weight=weight, span=(at, at + max(1, len(shown))))
            return


def _python(text: str, wanted: bool) -> Iterator[tuple[int, str]]:
    """Where Python code starts, and the code; unfenced text only when it begins like code."""
    fenced = list(_FENCE.finditer(text))
    for found in fenced:
        if found["tag"].lower() in ("python", "py", "python3") or (not found["tag"] and wanted):
            yield found.start("code"), found["code"]
    if not fenced and _BARE.match(text):
        yield 0, text


def _broken_line(source: str) -> int | None:
    """The line of a syntax error other than an end cut off; None when the code parses as far as it goes."""
    lines = source.rstrip().splitlines()
    error = _syntax_error("\n".join(lines))
    if error is None or len(lines) < 2:
        return None
    line, offset = error.lineno or 1, error.offset or 0
    if any(said in error.msg for said in _CUT_OFF) and not _goes_on(lines, line):
        return None
    if line > len(lines) or (line == len(lines) and offset >= len(lines[-1].rstrip())):
        return None
    return line


# What the parser says of code that only wants to go on.
_CUT_OFF = (
    "was never closed",
    "unterminated",
    "expected an indented block",
    "unexpected EOF",
    "expected 'except'",
)
_PROSE = re.compile(
    r"(?!for|from|if|while|return|import|not|with|async|await|yield|lambda|assert|del|global|raise|print)"
    r"[A-Za-z]+(?: [A-Za-z]+){2,}"
)


def _goes_on(lines: list[str], at: int) -> bool:
    """Whether what follows a bracket that was never closed is a new beginning, not the bracket's content."""
    new = re.compile(r"(?:def|class|return|import|from)\b")
    return any(new.match(line) or _PROSE.match(line) for line in lines[at:])


def _syntax_error(source: str) -> SyntaxError | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape is no sign of anything
            ast.parse(source)
    except SyntaxError as error:
        return error
    except (ValueError, RecursionError, MemoryError):
        return None  # null bytes and the like are the business of other signs
    return None


def _unbalanced(text: str) -> Iterator[Sign]:
    """Closing brackets of the wrong kind, many of them."""
    stack: list[str] = []
    wrong, total, first = 0, 0, None
    for at, character in enumerate(text):
        if character in "([{":
            stack.append(character)
        elif character in _OPENS:
            total += 1
            if stack and stack[-1] == _OPENS[character]:
                stack.pop()
            else:
                wrong += 1
                first = at if first is None else first
    if first is not None and wrong >= 4 and wrong > 0.5 * total and "(" in text:
        reason = f"{wrong} of {total} closing brackets close nothing"
        yield Sign(reason=reason, weight=1.0 if wrong >= 12 else 0.5, span=(first, first + 1))
