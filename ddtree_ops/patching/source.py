"""Base sources: a wheel file, or a directory that holds sglang; read, never written."""

from __future__ import annotations

import ast
import base64
import csv
import io
import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlparse

from ddtree_ops.model.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One SGLang's sources; `record` holds what its wheel promised, {} where nothing did."""

    where: str
    version: str
    record: dict[str, str] = field(default_factory=dict)  # path → sha256, hexadecimal
    editable: bool = False
    root: Path | None = None  # directory that holds `sglang/`; None: a wheel
    wheel: Path | None = None

    def read(self, path: str) -> str | None:
        """The file's text with its line ends as on disk; None when there is no such file."""
        data = self.raw(path)
        return None if data is None else decoded(f"{self.where}: {path}", data)

    def raw(self, path: str) -> bytes | None:
        if self.wheel is not None:
            with zipfile.ZipFile(self.wheel) as archive:
                return archive.read(path) if path in archive.namelist() else None
        file = (self.root or Path()) / path
        return file.read_bytes() if file.is_file() else None

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """Path and bytes of every Python file below `sglang/`, sorted by path."""
        if self.wheel is not None:
            with zipfile.ZipFile(self.wheel) as archive:
                for name in sorted(name for name in archive.namelist() if _ours(name)):
                    yield name, archive.read(name)
            return
        root = self.root or Path()
        for file in sorted((root / "sglang").rglob("*.py")):
            yield file.relative_to(root).as_posix(), file.read_bytes()


def open_source(path: Path) -> Source:
    """A wheel, a venv, a site-packages, a source checkout or the package itself, told apart by looks."""
    if path.is_file():
        return from_wheel(path)
    if path.is_dir():
        return from_tree(path)
    raise UsageError("sglang sources", f"got no {path}, expected a wheel or a directory with sglang in it")


def from_wheel(path: Path) -> Source:
    """A wheel as pip downloads it; one without RECORD can be patched but not compared."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            infos = [name for name in names if re.fullmatch(r"sglang-[^/]+\.dist-info/METADATA", name)]
            if not infos or "sglang/__init__.py" not in names:
                raise UsageError(str(path), "got a file without sglang in it, expected an sglang wheel")
            metadata = archive.read(infos[0]).decode("utf-8", "replace")
            at = f"{PurePosixPath(infos[0]).parent}/RECORD"
            record = archive.read(at).decode("utf-8", "replace") if at in names else ""
    except zipfile.BadZipFile:
        raise UsageError(str(path), "got a file that is no zip archive, expected an sglang wheel") from None
    return Source(where=str(path), version=_metadata_version(metadata), record=hashes(record), wheel=path)


def from_tree(path: Path) -> Source:
    """Sources in a directory; an editable install leads to the checkout that it points at."""
    for root in _roots(path):
        if (root / "sglang" / "__init__.py").is_file():
            return _tree(path, root)
        for info in sorted(root.glob("sglang-*.dist-info")):
            if (target := _editable(info)) is not None and (target / "sglang" / "__init__.py").is_file():
                version = _metadata_version((info / "METADATA").read_text(encoding="utf-8"))
                return Source(where=str(target), version=version, root=target, editable=True)
    raise UsageError(str(path), "got no sglang package there, expected sglang/__init__.py below it")


def hashes(record: str) -> dict[str, str]:
    """RECORD's lines as path → hexadecimal sha256; other digests and unhashed lines are left out."""
    found = {}
    for row in csv.reader(io.StringIO(record)):
        if len(row) >= 2 and row[1].startswith("sha256="):
            digest = row[1].removeprefix("sha256=")
            found[row[0]] = base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()
    return found


def decoded(where: str, data: bytes) -> str:
    """Source text from bytes, line ends untouched."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            where, f"got bytes that are not UTF-8 at {error.start}, expected Python source"
        ) from None


def _ours(name: str) -> bool:
    return name.startswith("sglang/") and name.endswith(".py")


def _roots(path: Path) -> list[Path]:
    """Where below a given directory the package's parent may be."""
    inside = [path.parent] if path.name == "sglang" and (path / "__init__.py").is_file() else []
    venv = sorted(path.glob("lib/python3*/site-packages"))
    return [*inside, path, path / "python", path / "site", *venv]


def _tree(given: Path, root: Path) -> Source:
    for info in sorted(root.glob("sglang-*.dist-info")):
        record = info / "RECORD"
        text = record.read_text(encoding="utf-8") if record.is_file() else ""
        version = _metadata_version((info / "METADATA").read_text(encoding="utf-8"))
        return Source(where=str(root), version=version, record=hashes(text), root=root)
    return Source(where=str(root), version=_written_version(given, root), root=root)


def _metadata_version(metadata: str) -> str:
    found = re.search(r"^Version:\s*(\S+)", metadata, re.MULTILINE)
    if found is None:
        raise UsageError("sglang METADATA", "got no Version line, expected one")
    return found[1]


def _written_version(given: Path, root: Path) -> str:
    """The version that a source tree states: `sglang/_version.py`, `version.py`, then pyproject.toml."""
    for name in ("sglang/_version.py", "sglang/version.py"):
        file = root / name
        if file.is_file() and (version := _assigned(file.read_text(encoding="utf-8"))):
            return version
    project = root / "pyproject.toml"
    text = project.read_text(encoding="utf-8") if project.is_file() else ""
    if found := re.search(r'^version\s*=\s*"([^"]+)"', text, re.MULTILINE):
        return found[1]
    raise UsageError(str(given), "got sources that state no version, expected dist-info or sglang/version.py")


def _assigned(text: str) -> str | None:
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return None
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        names = {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.Assign) and names & {"__version__", "version"}:
            value = node.value
            return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None
    return None


def _editable(info: Path) -> Path | None:
    """The directory that an editable install puts on the path, from direct_url.json."""
    try:
        found = json.loads((info / "direct_url.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not found.get("dir_info", {}).get("editable"):
        return None
    project = Path(unquote(urlparse(found.get("url", "")).path))
    return next(
        (root for root in (project, project / "python", project / "src") if (root / "sglang").is_dir()), None
    )
