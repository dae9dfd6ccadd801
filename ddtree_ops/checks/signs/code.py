"""Signs in code: Python that no parser takes, and brackets that close what was never opened."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

from ddtree_ops.checks.signs.sign import Sign

_FENCE = re.compile(r"```(?P<tag>\w*)[^\n]*\n(?P<code>.*?)(?P<end>\n```|\Z)", re.DOTALL)
_OPENING = re.compile(r"^[ \t]*```(?P<info>[^`\n]*)$", re.MULTILINE)
# A language, then what renderers take: {options}, key=value, one file name.
_INFO = re.compile(r"[\w+#.:/-]*(?: ?\{[^}]*\}| [\w-]+=(?:\"[^\"]*\"|\S+))*(?: [\w./:-]+)?")
_BARE = re.compile(r"^(?:def \w+\(|from [\w.]+ import |import \w+|class \w+[:(])", re.MULTILINE)
_OPENS = {")": "(", "]": "[", "}": "{"}


def code(text: str, prompt: str | None) -> Iterator[Sign]:
    yield from _odd_fence(text)
    yield from _unparsable(text, prompt)
    yield from _unbalanced(text)


def _odd_fence(text: str) -> Iterator[Sign]:
    """A fence that opens with words in place of a language's name, or an answer that is a fence alone."""
    opening = _OPENING.search(text)
    if opening is None:
        return
    info = opening["info"].strip()
    if not _INFO.fullmatch(info):
        yield Sign(reason=f"a code fence that opens with {info[:40]!r}", weight=1.0, span=opening.span())
    elif not text.replace("`", "").strip().removeprefix(info).strip():
        yield Sign(reason="a code fence and nothing in it", weight=1.0, span=opening.span())


def _unparsable(text: str, prompt: str | None) -> Iterator[Sign]:
    wanted = prompt is not None and "python" in prompt.lower()
    for start, source, closed in _python(text, wanted):
        line = _broken_line(source, closed=closed)
        if line is not None:
            shown = source.splitlines()[line - 1].strip()
            at = start + sum(len(each) + 1 for each in source.splitlines()[: line - 1])
            # Where nobody asked for Python 3 it may be older, or a sketch.
            weight = 1.0 if wanted or _PROSE.match(shown) else 0.7
            reason = f"Python that does not parse at {shown[:50]!r}"
            yield Sign(reason=reason, weight=weight, span=(at, at + max(1, len(shown))))
            return


def _python(text: str, wanted: bool) -> Iterator[tuple[int, str, bool]]:
    """Where Python code starts, the code, and whether it ends; unfenced only when it begins like code."""
    fenced = list(_FENCE.finditer(text))
    for found in fenced:
        if found["tag"].lower() in ("python", "py", "python3") or (not found["tag"] and wanted):
            yield found.start("code"), found["code"], found["end"] != ""
    if not fenced and _BARE.match(text):
        yield 0, text, False


def _broken_line(source: str, *, closed: bool) -> int | None:
    """The line of a syntax error other than a cut-off end; None when all of the code parses."""
    lines = source.rstrip().splitlines()
    error = _syntax_error("\n".join(lines))
    if error is None or not lines:
        return None
    if not closed and "was never closed" in error.msg:
        error = _syntax_error("\n".join(lines) + _closers(source)) or error
    line, offset = min(error.lineno or 1, len(lines)), error.offset or 0
    if closed or _goes_on(lines, line):
        return line
    at_end = line == len(lines) and offset >= len(lines[-1].rstrip())
    return None if at_end or any(said in error.msg for said in _CUT_OFF) else line


def _closers(source: str) -> str:
    """The brackets that would close what is open at the end; strings and comments are not looked into."""
    stack: list[str] = []
    for character in source:
        if character in "([{":
            stack.append({"(": ")", "[": "]", "{": "}"}[character])
        elif stack and character == stack[-1]:
            stack.pop()
    return "".join(reversed(stack))


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
