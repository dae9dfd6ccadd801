"""The embedded lab comes up, comes back and leaves nothing behind, whatever was killed."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtree_ops.lab.embedded.lab import EmbeddedLab
from ddtree_ops.lab.embedded.process import marked
from ddtree_ops.lab.image import cache_directory
from ddtree_ops.model.errors import UsageError


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[EmbeddedLab]:
    lab = EmbeddedLab(tmp_path / ("long-name-" * 12) / "lab", cache_directory())
    yield lab
    lab.down()


def server(lab: EmbeddedLab) -> int:
    return int((lab.state / "nodes/lab/ready").read_text())


def gone(pid: int) -> bool:
    """Whether the process ends within a moment."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def processes(lab: EmbeddedLab) -> list[int]:
    return marked(f"DDTREE_OPS_ROOT={lab.state / 'nodes/lab/root'}")


def test_a_lab_that_was_never_up_has_no_hosts(tmp_path: Path) -> None:
    lab = EmbeddedLab(tmp_path / "lab", tmp_path)
    assert lab.status() == ()
    lab.down()
    with pytest.raises(UsageError, match="none: the lab is not up"):
        lab.host("lab")


def test_up_twice_is_the_same_node_and_down_ends_every_process(lab: EmbeddedLab) -> None:
    first = lab.up()
    pid = server(lab)
    assert (lab.up(), server(lab)) == (first, pid)
    lab.run("lab", ("systemctl", "start", "--no-block", "sglang-ddtree"))
    lab.down()
    assert (processes(lab), lab.state.exists(), lab.status()) == ([], False, ())
    assert gone(pid)


def test_a_killed_server_is_seen_and_up_brings_the_same_disk_back(lab: EmbeddedLab) -> None:
    lab.up()
    (lab.files("lab") / "root/note").write_text("kept")
    os.kill(server(lab), signal.SIGKILL)
    deadline = time.monotonic() + 10
    while lab.status()[0].running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [host.running for host in lab.status()] == [False]
    assert [host.running for host in lab.up()] == [True]
    assert (lab.files("lab") / "root/note").read_text() == "kept"


def test_down_ends_what_a_killed_server_left_running(lab: EmbeddedLab) -> None:
    lab.up()
    os.kill(server(lab), signal.SIGKILL)
    lab.down()
    assert processes(lab) == []


def test_a_second_node_is_a_node_of_its_own(lab: EmbeddedLab) -> None:
    one, two = lab.up(2)
    assert (one.name, two.name) == ("lab", "lab-2")
    assert len({one.port, two.port, one.engine_port, two.engine_port}) == 4
    assert lab.run(
        "lab-2", ("systemctl", "show", "sglang-ddtree", "-p", "FragmentPath", "--value")
    ).stdout == (f"{two.unit_dir}/sglang-ddtree.service\n".encode())


def test_the_node_says_that_its_systemd_is_a_stand_in(lab: EmbeddedLab) -> None:
    lab.up()
    assert (
        lab.run("lab", ("systemctl", "--version")).stdout == b"systemd stand-in 1 (ddtree-ops embedded lab)\n"
    )
