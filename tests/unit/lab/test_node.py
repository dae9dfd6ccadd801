"""The inventory that a lab writes is one that the tool reads; its unit is one that systemd would take."""

from pathlib import Path

import pytest

from ddtree_ops.config.inventory import parse_inventory
from ddtree_ops.lab.embedded.unitfile import parse
from ddtree_ops.lab.hosts import Kind, LabHost
from ddtree_ops.lab.node import hand_written_unit, write_inventory, write_unit


def host(name: str, root: str, port: int) -> LabHost:
    return LabHost(
        name=name,
        kind=Kind.EMBEDDED if root else Kind.SYSTEMD,
        address="127.0.0.1",
        port=22,
        user="me",
        identity_file=Path("/s/key"),
        known_hosts=Path("/s/known_hosts"),
        root=root,
        engine_port=port,
    )


@pytest.mark.parametrize(
    ("hosts", "profiles"),
    [
        ((host("lab", "/a", 1), host("lab-2", "/b", 2)), ["lab", "lab-2"]),
        ((host("h1", "", 30001), host("h2", "", 30001)), ["lab", "lab"]),
    ],
)
def test_each_host_has_the_profile_of_its_own_paths(
    tmp_path: Path, hosts: tuple[LabHost, ...], profiles: list[str]
) -> None:
    path = tmp_path / "inventory.yaml"
    write_inventory(path, hosts)
    inventory = parse_inventory(path.read_text(), str(path))
    assert [inventory.hosts[one.name].profile for one in hosts] == profiles
    assert [inventory.profiles[name].port for name in profiles] == [one.engine_port for one in hosts]
    assert [inventory.profiles[name].venv for name in profiles] == [one.venv for one in hosts]
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_hand_written_unit_has_nothing_to_complain_of() -> None:
    assert parse(hand_written_unit(host("lab", "/a b", 1)), "x.service")[1] == []


def test_a_unit_that_is_there_is_left_alone(tmp_path: Path) -> None:
    write_unit(host("lab", "/a", 1), tmp_path)
    unit = tmp_path / "etc/systemd/system/sglang-ddtree.service"
    unit.write_text("mine")
    write_unit(host("lab", "/a", 2), tmp_path)
    assert unit.read_text() == "mine"
