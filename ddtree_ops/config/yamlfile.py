"""YAML with positions: every complaint names file, line and key."""

from __future__ import annotations

from io import StringIO
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from ddtree_ops.model.errors import UsageError

T = TypeVar("T")
Key = str | int


def parse(text: str, file: str) -> CommentedMap:
    """The mapping at the top of a YAML text; raises UsageError naming file and line."""
    try:
        document = YAML(typ="rt").load(StringIO(text))
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{file}:{line}", f"got {error.problem}, expected valid YAML") from error
    except YAMLError as error:
        raise UsageError(file, f"got {error}, expected valid YAML") from error
    if document is None:
        return CommentedMap()
    if not isinstance(document, CommentedMap):
        raise UsageError(f"{file}:1", "got a list or a single value, expected a mapping of keys")
    return document


def validate(adapter: TypeAdapter[T], document: CommentedMap, node: Any, file: str, at: tuple[Key, ...]) -> T:
    """`node`, found at key path `at` of `document`, as the adapter's type; UsageError with file:line:key."""
    try:
        return adapter.validate_python(plain(node))
    except ValidationError as error:
        first = error.errors()[0]
        path = (*at, *(part for part in first["loc"] if isinstance(part, str | int)))
        raise complaint(document, file, path, _words(first)) from error


def complaint(
    document: CommentedMap, file: str, path: tuple[Key, ...], message: str, hint: str = ""
) -> UsageError:
    """A UsageError that names the position of a key path in its file."""
    return UsageError(f"{file}:{line_of(document, path)}:{dotted(path)}", message, hint=hint)


def dotted(path: tuple[Key, ...]) -> str:
    return ".".join(str(part) for part in path)


def line_of(document: CommentedMap, path: tuple[Key, ...]) -> int:
    """Line, from 1, of the deepest key of the path that the document holds."""
    node: Any = document
    line = 1
    for part in path:
        if isinstance(node, CommentedMap) and part in node:
            line = node.lc.key(part)[0] + 1
        elif isinstance(node, CommentedSeq) and isinstance(part, int) and part < len(node):
            line = node.lc.item(part)[0] + 1
        else:
            break
        node = node[part]
    return line


def plain(node: Any) -> Any:
    """The same data as plain dicts and lists, which pydantic's strict modes expect."""
    if isinstance(node, CommentedMap):
        return {str(key): plain(value) for key, value in node.items()}
    if isinstance(node, CommentedSeq):
        return [plain(value) for value in node]
    return node


def _words(error: Any) -> str:
    kind, given = error["type"], error.get("input")
    if kind == "extra_forbidden" or kind == "unexpected_keyword_argument":
        return "got an unknown key, expected one of those in the sample configuration"
    if kind == "missing" or kind == "missing_keyword_only_argument":
        return "got nothing, expected this key"
    return f"got {given!r}, expected {_expectation(error['msg'])}"


def _expectation(message: str) -> str:
    for prefix in ("Input should be ", "Value error, "):
        message = message.removeprefix(prefix)
    return message
