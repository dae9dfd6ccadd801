"""Whatever ends a deploy, after whichever step: the node ends proven in the old or the new release."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from ddtree_ops.lab.hosts import Kind, Lab

from ..conftest import need
from .conftest import ROOT, SERVICE, Operator, operate

STEPS = tuple(
    step
    for step in YAML(typ="safe").load((ROOT / "playbooks" / "deploy.yaml").read_text())["steps"]
    if step != "plan"
)
LEASE_S = 6
DEAD_AFTER_S = 6
SETTLE_S = 90.0
ENDINGS = ("killed", "cut", "rebooted")


def playbook(operator: Operator, after: str, blow: tuple[str, ...]) -> Path:
    """The shipped deploy with one command more, which deals the blow after a step."""
    steps = YAML(typ="safe").load((ROOT / "playbooks" / "deploy.yaml").read_text())["steps"]
    at = steps.index(after) + 1
    steps.insert(at, {"command": list(blow), "on": "operator", "timeout_s": 30})
    path = operator.home / f"after-{after}.yaml"
    with path.open("w") as file:
        YAML().dump({"name": "deploy", "steps": steps}, file)
    return path


def blow_of(ending: str, operator: Operator) -> tuple[str, ...]:
    if ending == "killed":
        return ("/bin/sh", "-c", "kill -9 $PPID")
    code = (
        "import sys; from pathlib import Path; from ddtree_ops.lab.kinds import open_lab; from ddtree_ops.lab.hosts import Kind;"
        f"lab = open_lab(Kind({str(operator.lab.kind)!r}), Path({str(operator.lab.state)!r}));"
        f"lab.{'cut_link' if ending == 'cut' else 'reboot'}({operator.name!r})"
    )
    return (sys.executable, "-c", code)


def settled(operator: Operator) -> tuple[str, str]:
    """(release that the unit on the node belongs to, event by which the run ended there)."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        status = operator.ops("status", "--json")
        if status.code == 0 and status.json["nodes"][0]["guard"] is None and operator.healthy():
            break
        assert time.monotonic() < deadline, status.out + status.err
        time.sleep(0.5)
    row = status.json["nodes"][0]
    ends = [entry for entry in operator.entries() if entry["event"] in ("confirmed", "reverted", "unproven")]
    return row["release"] or "none", ends[-1]["event"] if ends else "none"


def story(ending: str, operator: Operator) -> list[str]:
    """Deals the blow after each step in turn; returns what was not as it should be."""
    wrong = []
    for after in STEPS:
        operator.on_node("/bin/sh", "-c", f"rm -rf {operator.host.state_dir}")
        path = playbook(operator, after, blow_of(ending, operator))
        before = operator.serving()
        begun = operator.start("run", str(path), "--yes", "--lease", str(LEASE_S))
        if ending == "cut":
            wait_for(lambda process=begun: process.poll() is not None or not linked(operator), 60)
            time.sleep(LEASE_S + 4)
            operator.lab.restore_link(operator.name)
        begun.wait(180)
        wrong += [f"{ending} after {after}: {what}" for what in judged(operator, after, before)]
        back_to_found(operator, before[1])
    return wrong


def judged(operator: Operator, after: str, before: tuple[str, str]) -> list[str]:
    release, event = settled(operator)
    _, unit = operator.serving()
    complaints = []
    if release in ("none", "0"):
        if unit != before[1]:
            complaints.append("the old release's unit is not what it was")
    elif release != "1" or "release 1 of" not in unit:
        complaints.append(f"release {release} with a unit of something else")
    if STEPS.index(after) >= STEPS.index("guard") and event not in ("confirmed", "reverted"):
        complaints.append(f"its journal ends with {event}")
    if event == "reverted" and release == "1":
        complaints.append("reverted, and yet at release 1")
    command = operator.on_node(
        "/bin/sh", "-c", "tr '\\0' ' ' < /proc/$(systemctl show -p MainPID --value sglang-ddtree)/cmdline"
    )
    if f"--speculative-ddtree-budget {16 if release == '1' else 7}" not in command:
        complaints.append(f"at release {release} the process is {command}")
    return complaints


def back_to_found(operator: Operator, text: str) -> None:
    unit = operator.file_on_node(f"/etc/systemd/system/{SERVICE}.service")
    if unit.read_text() != text:
        unit.write_text(text)
        operator.on_node("systemctl", "daemon-reload")
        operator.on_node("systemctl", "restart", SERVICE)
        wait_for(operator.healthy, 60)


def linked(operator: Operator) -> bool:
    return operator.ops("status", "--json").code == 0


def wait_for(look: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not look() and time.monotonic() < deadline:
        time.sleep(0.3)


@pytest.fixture(scope="module")
def hosts(fleet: Callable[[Kind, int], Lab]) -> Lab:
    need(Kind.SYSTEMD)
    return fleet(Kind.SYSTEMD, len(ENDINGS))


@pytest.mark.early
@pytest.mark.systemd
@pytest.mark.timeout(1500)
def test_a_node_is_never_left_between_releases(hosts: Lab, tmp_path: Path) -> None:
    operators = []
    for ending, host in zip(ENDINGS, hosts.status(), strict=True):
        home = tmp_path / ending
        home.mkdir()
        operator = next(operate(hosts, host, home))
        operator.inventory["defaults"]["dead_after_s"] = DEAD_AFTER_S
        operator.save()
        operators.append((ending, operator))
    with ThreadPoolExecutor(len(ENDINGS)) as pool:
        found = list(pool.map(lambda pair: story(*pair), operators))
    assert [line for lines in found for line in lines] == []
