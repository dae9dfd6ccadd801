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
    for start, source in _python(text, prompt):
        line = _broken_line(source)
        if line is not None:
            shown = source.splitlines()[line - 1].strip()
            at = start + sum(len(each) + 1 for each in source.splitlines()[: line - 1])
            reason = f"Python that does not parse at {shown[:50]!r}"
            yield Sign(reason=reason, weight=0.7, span=(at, at + max(1, len(shown))))
            return


def _python(text: str, prompt: str | None) -> Iterator[tuple[int, str]]:
    """Where Python code starts, and the code; unfenced text only when it begins like code."""
    fenced = list(_FENCE.finditer(text))
    wanted = prompt is not None and "python" in prompt.lower()
    for found in fenced:
        if found["tag"].lower() in ("python", "py", "python3") or (not found["tag"] and wanted):
            yield found.start("code"), found["code"]
    if not fenced and (begin := _BARE.search(text)) is not None and begin.start() == 0:
        yield 0, text


def _broken_line(source: str) -> int | None:
    """The line of a syntax error that is not just the cut-off end; None when the code parses as far as it goes."""
    lines = source.rstrip().splitlines()
    error = _syntax_error(source)
    if error is None:
        return None
    at = min(error, len(lines)) or 1
    kept = lines[: at - 1] if at >= len(lines) - 1 else None
    while kept:  # an answer that was cut off: does it parse without its last lines?
        if _syntax_error("\n".join(kept)) is None:
            return None
        kept.pop()
    return at if len(lines) > 1 else None


def _syntax_error(source: str) -> int | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape is no sign of anything
            ast.parse(source)
    except SyntaxError as error:
        return error.lineno or 1
    except (ValueError, RecursionError, MemoryError):
        return 1
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
