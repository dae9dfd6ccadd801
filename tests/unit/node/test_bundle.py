"""The agent as one program: self-contained, old enough, and heard through noise."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.model.errors import Failed, Refused
from ddtree_ops.node.bundle import ARGV, TOO_OLD, agent_source, decode_reply, encode_request
from ddtree_ops.node.node import Node
from ddtree_ops.node.ssh import Ran

from .conftest import Folder


def modules() -> dict[str, ast.Module]:
    folder = files("ddtree_ops.node.agent")
    return {path.name: ast.parse(path.read_text()) for path in folder.iterdir() if path.name.endswith(".py")}


def test_it_parses_under_python_3_8() -> None:
    ast.parse(agent_source(), feature_version=(3, 8))


def test_top_level_names_are_unique_among_the_files() -> None:
    names: Counter[str] = Counter()
    for tree in modules().values():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names[node.name] += 1
            elif isinstance(node, ast.Assign):
                names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    assert [name for name, count in names.items() if count > 1] == []


def test_it_imports_the_standard_library_alone() -> None:
    imported = set()
    for node in ast.walk(ast.parse(agent_source())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or ".").split(".")[0])
    assert imported <= sys.stdlib_module_names | {"__future__"}


def interpreters() -> list[str]:
    """Every CPython 3.8 or later at hand; at least the one that runs the tests."""
    pyenv = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3"))
    named = [shutil.which(f"python3.{minor}") for minor in range(8, 15)]
    usable = [path for path in [*map(str, pyenv), *named] if path and _version(path) >= (3, 8)]
    return [sys.executable, *{_version(path): path for path in usable}.values()]


def _version(python: str) -> tuple[int, int]:
    code = "import sys; print(*sys.version_info[:2])"
    done = subprocess.run((python, "-c", code), capture_output=True, text=True, check=False)
    major, minor = [*done.stdout.split(), "0", "0"][:2]
    return int(major), int(minor)


@pytest.mark.parametrize("python", interpreters())
def test_it_runs_without_site_packages_under_each_python(python: str, folder: Folder) -> None:
    def ask(verb: str, **request: object) -> dict[str, Any]:
        stdin = encode_request({"verb": verb, "service": "engine", **request})
        done = subprocess.run((python, *ARGV[1:]), input=stdin, capture_output=True, check=True)
        reply = decode_reply(b"Welcome!\n" + done.stdout)
        assert reply is not None
        assert done.stderr == b""
        return reply

    assert ask("dance")["error"]["message"].startswith("got verb 'dance', expected one of probe, lock")
    assert ask("probe", venv="/none")["ok"]["systemd"] == "unit-test 1"
    assert ask("lock", who="ann", run="r1", ttl_s=60)["ok"]["who"] == "ann"
    assert ask("arm", run="r1", by="ann", release="1", previous="0", lease_s=0)["ok"]["state"] == "armed"
    program = folder.state / "agent.py"
    assert program.read_text() == agent_source()
    for command in ("guard-settle", "guard"):
        subprocess.run((python, "-I", "-S", str(program), command, "engine"), check=True)
    assert folder.guard_files() == []


@pytest.mark.parametrize("stdout", [b"", b"motd\n", b"\n--ddtree-ops-reply--\ncut off"])
def test_a_reply_that_did_not_come_whole_is_none(stdout: bytes) -> None:
    assert decode_reply(stdout) is None


class Shell:
    """A node whose shell ends as told."""

    def __init__(self, ran: Ran) -> None:
        self.ran = ran

    def run(self, argv: tuple[str, ...], *, stdin: bytes = b"", timeout_s: float) -> Ran:
        return self.ran


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (127, Refused, "not on this node's PATH, expected Python 3.8 or later"),
        (TOO_OLD, Refused, "too old, expected Python 3.8 or later"),
        (137, Failed, "got exit 137 and no reply, expected one: Killed"),
    ],
)
def test_a_node_that_can_not_run_it_says_why(code: int, kind: type[Exception], message: str) -> None:
    node = Node("n1", Shell(Ran(code=code, stdout=b"", stderr=b"x\nKilled\n")), "svc")
    with pytest.raises(kind) as caught:
        node.probe(venv="")
    assert str(caught.value).startswith("n1: ")
    assert str(caught.value).endswith(message)
