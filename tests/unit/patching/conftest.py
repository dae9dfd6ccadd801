"""A small package with SGLang's names, and patch sets written for one test."""

from __future__ import annotations

import base64
import hashlib
import textwrap
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddtree_ops.model.patch import PatchedTree
from ddtree_ops.patching.apply import apply_sets

BACKEND = "sglang/srt/backend.py"

SOURCE = textwrap.dedent(
    '''\
    """A backend."""

    from __future__ import annotations

    import os


    class Backend:
        """Reads rows."""

        def __init__(self, runner):
            # how many rows a request has
            self.width = runner.args.width
            self.depth = (
                runner.args.depth
                + 1
            )

        def rows(self, bs):
            if bs:
                return bs * self.width
            return 0


    class Draft:
        def __init__(self, runner):
            self.width = runner.args.width
    '''
)

EDIT = """\
  - file: sglang/srt/backend.py
    within: Backend.__init__
    anchor: self.width = runner.args.width
    action: replace
    text: |
      self.width = runner.args.budget + 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A directory with patch sets and sglang trees made for one test."""

    root: Path
    source: str = SOURCE
    path: str = BACKEND

    @property
    def sets(self) -> Path:
        return self.root / "patches"

    def write_set(
        self, name: str = "wide", *, body: str = "", edits: str = EDIT, versions: str = ">=0.5.9,<0.5.17"
    ) -> Path:
        """One patch set; `body` is YAML after name, summary, fixes and versions."""
        directory = self.sets / name
        directory.mkdir(parents=True, exist_ok=True)
        head = f'name: {name}\nsummary: Rows are wide.\nfixes: Everything.\nversions: "{versions}"\n'
        file = directory / "patchset.yaml"
        file.write_text(head + body + (f"edits:\n{edits}" if edits else ""), encoding="utf-8")
        return file

    def edit(
        self, action: str = "replace", anchor: str = "", text: str = "pass", within: str = "Backend"
    ) -> str:
        """YAML of one edit; `anchor` is a whole line such as `anchor: self.width = 1`."""
        lines = [f"  - file: {BACKEND}", f"    within: {within}", f"    action: {action}"]
        lines += [f"    {anchor}"] if anchor else []
        lines += ["    text: |", *(f"      {line}" for line in text.splitlines())]
        return "\n".join(lines) + "\n"

    def apply(self, *names: str, text: str | None = SOURCE, version: str = "0.5.11") -> PatchedTree:
        return apply_sets(names or ("wide",), self.sets, {BACKEND: text}.get, version)

    def write_tree(self, text: str = SOURCE, *, record: bool = True) -> Path:
        """A site-packages with the package and its dist-info, RECORD of the stock source."""
        site = self.root / "site-packages"
        for name, content in {"sglang/__init__.py": "", BACKEND: text}.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_bytes(content.encode())
        info = site / "sglang-0.5.11.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Name: sglang\nVersion: 0.5.11\n", encoding="utf-8")
        if record:
            (info / "RECORD").write_text(_record(), encoding="utf-8")
        return site

    def write_wheel(self, *, record: bool = True) -> Path:
        path = self.root / "sglang-0.5.11-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("sglang/__init__.py", "")
            archive.writestr(BACKEND, SOURCE)
            archive.writestr("sglang-0.5.11.dist-info/METADATA", "Name: sglang\nVersion: 0.5.11+cu129\n")
            if record:
                archive.writestr("sglang-0.5.11.dist-info/RECORD", _record())
        return path


def _record() -> str:
    lines = []
    for path, content in {"sglang/__init__.py": "", BACKEND: SOURCE}.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).decode().rstrip("=")
        lines.append(f"{path},sha256={digest},{len(content)}")
    return "\n".join([*lines, "sglang-0.5.11.dist-info/RECORD,,", ""])


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(root=tmp_path)
    made.sets.mkdir()
    return made
