"""The files that people copy parse: the sample inventory and every shipped playbook."""

from pathlib import Path

import pytest

from ddtree_ops.config.inventory import HostKeys, ProfileKeys, parse_inventory
from ddtree_ops.config.playbook import parse_playbook
from ddtree_ops.model.errors import UsageError
from ddtree_ops.plan.steps import NAMES, check_order

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "docs" / "inventory.sample.yaml"
PLAYBOOKS = sorted((ROOT / "playbooks").glob("*.yaml"))


def test_the_sample_inventory_parses_and_its_hosts_have_profiles() -> None:
    inventory = parse_inventory(SAMPLE.read_text(encoding="utf-8"), str(SAMPLE))
    assert [host.profile for host in inventory.resolve("all")] == ["k26-pcie", "k26-pcie", "k26-b300"]


def test_the_sample_shows_every_key_that_exists() -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    missing = [key for keys in (HostKeys, ProfileKeys) for key in keys.model_fields if f"{key}:" not in text]
    assert missing == []


@pytest.mark.parametrize("path", PLAYBOOKS, ids=lambda path: path.stem)
def test_a_shipped_playbook_parses_and_has_its_steps_in_order(path: Path) -> None:
    playbook = parse_playbook(path.read_text(encoding="utf-8"), str(path), NAMES)
    check_order(playbook, str(path))
    assert playbook.name == path.stem


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name: x\nsteps: [lock, install]", "p.yaml: steps.1: got install before guard, expected guard"),
        ("name: x\nsteps:\n  - lokc", "p.yaml:3:steps.0.step: got 'lokc', expected one of: lock,"),
        ("name: x\nsteps:\n  - lock\n  - on: node", "p.yaml:4:steps.1: got neither or both"),
        (
            "name: x\nsteps:\n  - step: lock\n    timeout_s: 0",
            "p.yaml:4:steps.0.timeout_s: got 0, expected greater",
        ),
        ("name: x\nsteps: []", "p.yaml:2:steps: got [], expected"),
        ("- name", "p.yaml:1: got a list or a single value, expected a mapping"),
    ],
)
def test_a_wrong_playbook_is_named_with_file_line_and_key(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_order(parse_playbook(text, "p.yaml", NAMES), "p.yaml")
    assert str(caught.value).startswith(complaint)
