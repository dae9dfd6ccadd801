"""The agent as one program: self-contained, old enough, and heard through noise."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from importlib.resources import files

import pytest

from ddtree_ops.model.errors import Failed, Refused
from ddtree_ops.node.bundle import ARGV, TOO_OLD, agent_source, decode_reply, encode_request
from ddtree_ops.node.node import Node
from ddtree_ops.node.ssh import Ran


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


def test_it_runs_without_site_packages_and_answers_an_unknown_verb() -> None:
    stdin = encode_request({"verb": "dance", "service": "x"})
    done = subprocess.run((sys.executable, *ARGV[1:]), input=stdin, capture_output=True, check=True)
    reply = decode_reply(b"Welcome!\n" + done.stdout)
    assert reply is not None
    assert reply["error"]["message"].startswith("got verb 'dance', expected one of probe, lock")


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
