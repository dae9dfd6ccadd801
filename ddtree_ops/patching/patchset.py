"""Patch sets as their YAML says: what they fix, rely on, edit and add."""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from ddtree_ops.model.errors import UsageError

FILE = "patchset.yaml"

Action = Literal["replace", "before", "after", "append_method", "top"]


def inside(path: str) -> str:
    """The path when it names a file below `sglang/`; anything that could leave a tree raises."""
    parts = PurePosixPath(path).parts
    if not path.startswith("sglang/") or ".." in parts or "\\" in path or str(PurePosixPath(path)) != path:
        raise ValueError(f"got {path!r}, expected a plain path below sglang/")
    return path


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"got {text!r}, expected a PEP 440 specifier such as '>=0.5.9,<0.5.17'") from None
    return text


def _dotted(name: str) -> str:
    if name and not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"got {name!r}, expected a dotted class or function name")
    return name


def _expression(text: str) -> str:
    return ast.unparse(ast.parse(text.strip(), mode="eval"))


TreePath = Annotated[str, AfterValidator(inside)]
Versions = Annotated[str, AfterValidator(_specifier)]
Dotted = Annotated[str, AfterValidator(_dotted)]
Expression = Annotated[str, AfterValidator(_expression)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Claim(_Entry):
    """One thing a set relies on (contract) or that makes it unnecessary (evidence)."""

    file: TreePath
    versions: Versions = ""
    within: Dotted = ""  # must be defined exactly once; "" is the module
    arguments: tuple[str, ...] = ()  # parameters that the function must take, by name
    reads: tuple[Expression, ...] = ()  # expressions that must occur in it, each
    reads_any: tuple[Expression, ...] = ()  # at least one of these


class Edit(_Entry):
    """One anchored change; exactly one kind of anchor, except for the actions that need none."""

    file: TreePath
    versions: Versions = ""
    within: Dotted = ""
    anchor: str | None = None  # whole statements, compared as syntax, not as text
    anchor_startswith: str | None = None  # the first words of one statement
    anchor_expr: Expression | None = None  # one expression; replaced inside its own lines
    action: Action
    text: str

    @model_validator(mode="after")
    def _anchored(self) -> Self:
        given = [name for name in ("anchor", "anchor_startswith", "anchor_expr") if getattr(self, name)]
        wanted = 0 if self.action in ("append_method", "top") else 1
        if len(given) != wanted:
            raise ValueError(f"got {given or 'no anchor'}, expected {wanted} anchor for {self.action}")
        if self.anchor_expr and self.action != "replace":
            raise ValueError(f"got action {self.action}, expected replace for anchor_expr")
        if self.action == "append_method" and not self.within:
            raise ValueError("got no within, expected the class that append_method adds to")
        if self.anchor:
            _parsed(self.anchor, "anchor")
        _check_text(self)
        return self


class Unnecessary(_Entry):
    """What in the sources shows that this release does not have the fault; all of it must hold."""

    because: str
    evidence: tuple[Claim, ...] = Field(min_length=1)


class PatchSet(_Entry):
    """One named change to SGLang's source; `root` is the directory that it was read from."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    summary: str
    fixes: str
    versions: Versions
    provides: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    contract: tuple[Claim, ...] = ()
    edits: tuple[Edit, ...] = ()
    overlay: tuple[TreePath, ...] = ()
    proof: Literal["verify", "none"] = "none"
    unnecessary: Unnecessary | None = None
    root: Path = Path()

    @property
    def files(self) -> tuple[str, ...]:
        """Every path of the base that applying the set looks at, sorted."""
        evidence = self.unnecessary.evidence if self.unnecessary else ()
        named = {claim.file for claim in (*self.contract, *evidence)} | {edit.file for edit in self.edits}
        return tuple(sorted(named | set(self.overlay)))

    def overlay_text(self, path: str) -> str:
        return (self.root / "overlay" / path).read_text(encoding="utf-8")


def covers(specifier: str, version: str) -> bool:
    """Whether the release is meant; local suffixes such as +cu129 do not matter, pre-releases count."""
    return SpecifierSet(specifier).contains(release_of(version), prereleases=True)


def release_of(version: str) -> str:
    """The public part of a version: 0.5.11 of 0.5.11+cu129."""
    try:
        return Version(version).public
    except InvalidVersion:
        raise UsageError("sglang version", f"got {version!r}, expected a version such as 0.5.11") from None


def load(directory: Path) -> PatchSet:
    """Reads `patchset.yaml` there; every complaint names file, line and key."""
    path = directory / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            "patch set", f"got {error.strerror} for {path}, expected a patch set there"
        ) from None
    data = _yaml(path, text)
    try:
        found = PatchSet.model_validate({**data, "root": directory})
    except ValidationError as error:
        raise _complaint(path, data, error) from None
    _check_place(found, path, data)
    return found


def names_in(sets_dir: Path) -> tuple[str, ...]:
    """The patch sets kept in a directory, sorted."""
    return tuple(sorted(child.parent.name for child in sets_dir.glob(f"*/{FILE}")))


def _yaml(path: Path, text: str) -> dict[str, Any]:
    try:
        data = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{path}:{line}", f"got {error.problem}, expected YAML") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path}:1", "got no keys, expected name, summary, versions, edits")
    if "root" in data:
        raise UsageError(f"{path}:{_line(data, ('root',))}:root", "got an unknown key")
    return data


def _complaint(path: Path, data: Any, error: ValidationError) -> UsageError:
    first = error.errors()[0]
    where = tuple(first["loc"])
    key = ".".join(str(part) for part in where)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "got an unknown key, expected one that docs/patches.md lists"
    elif not message.startswith("got "):
        message = f"got {first['input']!r:.60}, expected: {message}"
    return UsageError(f"{path}:{_line(data, where)}:{key}", message)


def _line(data: Any, where: tuple[int | str, ...]) -> int:
    """Line of the deepest part of `where` that the document has, from 1."""
    line = 0
    for part in where:
        position = getattr(data, "lc", None)
        try:
            line = position.key(part)[0] if isinstance(part, str) else position.item(part)[0]  # type: ignore[union-attr]
            data = data[part]
        except (KeyError, IndexError, TypeError, AttributeError):
            break
    return line + 1


def _check_place(found: PatchSet, path: Path, data: Any) -> None:
    if found.name != path.parent.name:
        at = f"{path}:{_line(data, ('name',))}:name"
        raise UsageError(at, f"got {found.name}, expected its directory's name {path.parent.name}")
    overlay = (found.root / "overlay").resolve()
    for number, name in enumerate(found.overlay):
        at = f"{path}:{_line(data, ('overlay', number))}:overlay.{number}"
        file = (overlay / name).resolve()
        if not file.is_relative_to(overlay):
            raise UsageError(at, f"got a link to {file}, expected a file below {overlay}")
        if not file.is_file():
            raise UsageError(at, f"got no file {overlay / name}, expected the new file's text there")


def _parsed(text: str, what: str) -> ast.Module:
    try:
        return ast.parse(textwrap.dedent(text))
    except SyntaxError as error:
        raise ValueError(f"got {what} that does not parse ({error.msg}), expected statements") from None


def _check_text(edit: Edit) -> None:
    """Our text must survive being indented: no string over several lines unless it documents something."""
    if edit.anchor_expr:
        _expression(edit.text)
        return
    if re.search(r"^#\s*ddtree-ops:", edit.text, re.MULTILINE):
        raise ValueError("got text with a ddtree-ops marker, expected none: applying adds them")
    if edit.text.lstrip().startswith("# -"):
        raise ValueError("got text that begins with '# -', expected another comment: it marks replaced lines")
    for line in _long_strings(textwrap.dedent(edit.text)):
        raise ValueError(f"got a string over several lines at line {line}, expected one line each")


def _long_strings(text: str) -> Iterator[int]:
    """Lines on which a string begins that holds a line break and is no docstring."""
    docs = {
        node.lineno
        for node in ast.walk(_parsed(text, "text"))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    kinds = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds and token.start[0] != token.end[0] and token.start[0] not in docs:
            yield token.start[0]
