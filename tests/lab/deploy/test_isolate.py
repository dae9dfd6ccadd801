"""The controlled experiment on lab nodes: every planted fault is named, with few restarts, and the node is back."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.lab.hosts import Kind, Lab

from .conftest import Operator, operate

# fault as the reference engine plants it ("": none, the patches are left out) → (name, restarts)
FAULTS = {
    "": ("patch absent", 4),
    "graph-width": ("graph width", 4),
    "wrong-drafter": ("wrong drafter", 3),
    "draft-quantised": ("draft quantised", 2),
    "block-size": ("block size", 3),
    "topk": ("top-k", 4),
    "batch": ("batch", 2),
    "prefix-cache": ("prefix cache", 1),
}
NODES = 2


@pytest.fixture(scope="module")
def hosts(fleet: Callable[[Kind, int], Lab]) -> Lab:
    return fleet(Kind.EMBEDDED, NODES)


def isolated(operator: Operator, fault: str) -> tuple[str, tuple[str, int], bool]:
    """(fault, (name given, restarts), whether the node is as it was) of one isolation."""
    environment = operator.profile["environment"]
    environment.pop("REFERENCE_ENGINE_FAULT", None)
    if fault:
        environment["REFERENCE_ENGINE_FAULT"] = fault
    operator.save()
    _, unit = operator.serving()
    ran = operator.ops("isolate", "--yes", "--json", *(() if fault else ("--patches", "none")), timeout_s=600)
    node: Any = ran.node
    back = operator.serving()[1] == unit and operator.healthy() and operator.status()["guard"] is None
    named = " or ".join(node["faults"]) if ran.code == 0 else f"exit {ran.code}: {ran.err[-2000:]}"
    return fault, (named, node["restarts"]), back and node["release"] == "0"


@pytest.mark.timeout(900)
def test_each_planted_fault_is_named_on_a_node_that_is_then_back(hosts: Lab, tmp_path: Path) -> None:
    operators = []
    for host in hosts.status():
        (tmp_path / host.name).mkdir()
        operators.append(next(operate(hosts, host, tmp_path / host.name)))
    faults = list(FAULTS)

    def turn(number: int) -> list[tuple[str, tuple[str, int], bool]]:
        return [isolated(operators[number], fault) for fault in faults[number::NODES]]

    with ThreadPoolExecutor(NODES) as pool:
        rows = [row for rows in pool.map(turn, range(NODES)) for row in rows]
    assert {fault: named for fault, named, _ in rows} == FAULTS
    assert [fault for fault, _, back in rows if not back] == []


def test_a_profile_that_writes_right_is_not_explained(hosts: Lab, tmp_path: Path) -> None:
    operator = next(operate(hosts, hosts.status()[0], tmp_path))
    ran = operator.ops("isolate", "--yes", "--json", code=1)
    assert (ran.node["faults"], ran.node["sentence"]) == (
        [],
        "not reproduced: right: 16/4 +graph-width +verify-width",
    )


def test_isolating_without_a_terminal_needs_a_yes(hosts: Lab, tmp_path: Path) -> None:
    operator = next(operate(hosts, hosts.status()[0], tmp_path))
    assert operator.ops("isolate", "--json", code=2).json["error"]["what"] == "--yes"
