"""The inventory resolves names to hosts, and complaints carry file, line and key."""

import pytest

from ddtree_ops.config.inventory import Inventory, parse_inventory
from ddtree_ops.model.errors import UsageError

SAMPLE = """\
defaults: {user: ops, profile: small}
hosts:
  gpu1: {address: 10.0.0.1}
  gpu2:
    address: 10.0.0.2
    port: 2222
    user: root
groups:
  all: [gpu1, gpu2]
profiles:
  small:
    service: sglang
    venv: /opt/venv
    model: /models/m
    port: 30001
    budget: 16
    environment: {A: "1"}
"""


def test_a_group_resolves_to_its_hosts_with_defaults_applied() -> None:
    hosts = parse_inventory(SAMPLE, "inv.yaml").resolve("all")
    assert [(host.name, host.user, host.port, host.profile) for host in hosts] == [
        ("gpu1", "ops", None, "small"),
        ("gpu2", "root", 2222, "small"),
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ops@10.1.1.1:2200", ("10.1.1.1", 2200, "ops")),
        ("10.1.1.1:2200", ("10.1.1.1", 2200, None)),
        ("root@[fd00::1]:22", ("fd00::1", 22, "root")),
        ("alias", (None, None, None)),
    ],
)
def test_a_name_outside_the_inventory_is_an_address_or_an_ssh_alias(
    name: str, expected: tuple[str | None, int | None, str | None]
) -> None:
    (host,) = Inventory().resolve(name)
    assert (host.address, host.port, host.user) == expected


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("budget: 16", "budget: 0", "inv.yaml:16:profiles.small.budget: got 0, expected greater than or equal to 1"),
        ("budget: 16", "budjet: 16", "inv.yaml:16:profiles.small.budjet: got an unknown key"),
        ("port: 2222", "port: ssh", "inv.yaml:6:hosts.gpu2.port: got 'ssh', expected a valid integer"),
        ("[gpu1, gpu2]", "[gpu1, gpu3]", "inv.yaml:9:groups.all.1: got 'gpu3', expected one of: gpu1, gpu2"),
        ("profile: small", "profile: big", "inv.yaml:1:defaults.profile: got 'big', expected one of: small"),
        ("service: sglang", "service: 'a;b'", "inv.yaml:12:profiles.small.service: got 'a;b', expected"),
        ("groups:", "grupps:", "inv.yaml:8:grupps: got an unknown key"),
        ("    model: /models/m\n", "", "inv.yaml:11:profiles.small.model: got nothing, expected this key"),
        ("{address: 10.0.0.1}", "{address: 10.0.0.1", "inv.yaml:4"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_named_with_file_line_and_key(old: str, new: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_inventory(SAMPLE.replace(old, new, 1), "inv.yaml")
    assert str(caught.value).startswith(complaint)
