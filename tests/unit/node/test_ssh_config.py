"""ssh_config with its Include lines in place."""

from __future__ import annotations

from pathlib import Path

import paramiko
import pytest

from ddtree_ops.model.errors import UsageError
from ddtree_ops.node.ssh_config import read_ssh_config


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".ssh/conf.d").mkdir(parents=True)
    return tmp_path


def lookup(home: Path, host: str) -> dict[str, object]:
    text = read_ssh_config(None, home=home, system=home / "etc")
    return dict(paramiko.SSHConfig.from_text(text).lookup(host))


def test_included_hosts_are_found_and_the_lines_after_go_on_in_their_own_block(home: Path) -> None:
    (home / ".ssh/config").write_text("Host a\n  Include conf.d/*\n  Port 2222\nHost *\n  User ann\n")
    (home / ".ssh/conf.d/1").write_text("Host b\n  HostName 10.0.0.2\n")
    assert lookup(home, "b") == {"hostname": "10.0.0.2", "user": "ann"}
    assert lookup(home, "a") == {"hostname": "a", "port": "2222", "user": "ann"}


def test_the_first_value_wins_as_in_openssh(home: Path) -> None:
    (home / ".ssh/config").write_text(f'Include "{home}/.ssh/conf.d/1" ~/.ssh/none\nHost b\n  Port 1\n')
    (home / ".ssh/conf.d/1").write_text("Host b\n  Port 2\n")
    (home / "etc").mkdir()
    (home / "etc/ssh_config").write_text("Host b\n  Port 3\n  User root\n")
    assert lookup(home, "b") == {"hostname": "b", "port": "2", "user": "root"}


def test_includes_that_go_round_in_a_circle_are_a_usage_error(home: Path) -> None:
    (home / ".ssh/config").write_text("Include config\n")
    with pytest.raises(UsageError, match="circle"):
        lookup(home, "x")


def test_no_configuration_at_all_is_fine(tmp_path: Path) -> None:
    assert lookup(tmp_path, "x") == {"hostname": "x"}
