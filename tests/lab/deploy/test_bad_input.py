"""Bad input on a node: a message in words, the documented exit code, and the node serves what it served."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from typing import Any

import asyncssh
import pytest

from ddtree_ops.lab.hosts import Kind

from .conftest import SERVICE, SMALL_GPU, Operator, first_on_path, wait_until

TRITON = "sglang/srt/layers/attention/triton_backend.py"


def site(operator: Operator) -> Any:
    (found,) = operator.file_on_node("/opt/sglang/lib").glob("python3.*/site-packages")
    return found


def unknown_host(operator: Operator) -> None:
    operator.entry.update(address="no-such-host.invalid")


def nothing_listens(operator: Operator) -> None:
    operator.entry["port"] = 9


def wrong_key(operator: Operator) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    operator.entry["identity_file"] = str(operator.home / "other_key")
    key.write_private_key(operator.entry["identity_file"])


def wrong_host_key(operator: Operator) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().split()[:2]
    address, port = operator.host.address, operator.host.port
    name = address if port == 22 else f"[{address}]:{port}"
    operator.entry["known_hosts"] = str(operator.home / "known_hosts")
    (operator.home / "known_hosts").write_text(f"{name} {' '.join(other)}\n")


def unknown_host_key(operator: Operator) -> None:
    operator.entry["known_hosts"] = str(operator.home / "known_hosts")
    (operator.home / "known_hosts").write_text("")


def no_venv(operator: Operator) -> None:
    operator.profile["venv"] = "/nonexistent"


def bare_venv(operator: Operator) -> None:
    operator.on_node(
        "/bin/sh",
        "-c",
        f"mkdir -p {operator.host.root}/opt/bare/bin && ln -sf {operator.host.venv}/bin/python {operator.host.root}/opt/bare/bin/python",
    )
    operator.profile["venv"] = f"{operator.host.root}/opt/bare"


def drafter_missing(operator: Operator) -> None:
    operator.profile["drafter"] = "/models/nothing"


def model_missing(operator: Operator) -> None:
    operator.profile["model"] = "/models/nothing"


def unknown_profile_key(operator: Operator) -> None:
    operator.profile["budjet"] = 16


def simulated_acceptance(operator: Operator) -> None:
    operator.profile["environment"]["SGLANG_SIMULATE_ACC_LEN"] = "4"


def foreign_patch_set(operator: Operator) -> None:
    operator.profile["patches"] = ["no-such-set"]


Change = Callable[[Operator], None]
CASES: list[tuple[str, Change | None, tuple[str, ...], int, str, str]] = [
    ("unknown host", unknown_host, (), 3, "no-such-host.invalid", ""),
    ("nothing listens", nothing_listens, (), 3, "9", ""),
    ("wrong key", wrong_key, (), 3, "", ""),
    ("wrong host key", wrong_host_key, (), 3, "key", ""),
    ("unknown host key", unknown_host_key, (), 3, "SHA256:", ""),
    ("no venv", no_venv, (), 3, "got no Python at /nonexistent/bin/python", "venv"),
    ("no sglang", bare_venv, (), 3, "got no sglang in", "pip install sglang"),
    ("drafter missing", drafter_missing, (), 3, "got no /models/nothing on the node", "drafter"),
    ("model missing", model_missing, (), 3, "got no /models/nothing on the node", "model"),
    ("budget 0", None, ("--budget", "0"), 2, "got 0, expected", ""),
    ("budget negative", None, ("--budget", "-3"), 2, "got -3, expected", ""),
    (
        "top-k over the vocabulary",
        None,
        ("--topk", "99999999"),
        2,
        "expected at most the model's vocabulary",
        "",
    ),
    ("unit name with shell characters", None, ("--service", "a;reboot"), 2, "'a;reboot'", ""),
    ("unknown profile", None, ("--profile", "nothing"), 2, "got 'nothing', expected one of:", ""),
    ("unknown key", unknown_profile_key, (), 2, "got an unknown key", ""),
    ("unknown patch set", foreign_patch_set, (), 2, "no-such-set", ""),
    ("simulated acceptance", simulated_acceptance, (), 3, "SGLANG_SIMULATE_ACC_LEN=4", ""),
]


@pytest.mark.parametrize(
    ("change", "words", "code", "message", "hint"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_bad_input_is_refused_in_words_and_the_node_serves_on(
    change: Change | None, words: tuple[str, ...], code: int, message: str, hint: str, fresh: Operator
) -> None:
    before = fresh.serving()
    if change is not None:
        change(fresh)
        fresh.save()
    ran = fresh.deploy(*words, code=code)
    document = ran.json
    error = document["error"] if "error" in document else document["nodes"][0]["error"]
    assert document["exit_code"] == code
    assert message in f"{error['what']}: {error['message']}"
    assert hint in error["hint"] + error["what"]
    assert fresh.serving() == before
    assert fresh.healthy()


def test_modified_sources_are_named_and_accepted_only_when_said(fresh: Operator) -> None:
    other = site(fresh) / "sglang" / "srt" / "utils" / "common.py"
    text = other.read_text()
    other.write_text(text + "\n# by hand\n")
    try:
        refused = fresh.deploy(code=3).node["error"]
        assert "sglang/srt/utils/common.py" in refused["message"]
        fresh.deploy("--accept-modified")
    finally:
        other.write_text(text)


def test_a_missing_anchor_is_shown_before_anything_is_touched(fresh: Operator) -> None:
    backend = site(fresh) / TRITON
    text = backend.read_text()
    backend.write_text(
        text.replace("self.num_draft_tokens = model_runner", "self.num_draft_width = model_runner", 1)
    )
    before = fresh.serving()
    try:
        error = fresh.deploy("--accept-modified", code=3).node["error"]
        assert TRITON in f"{error['what']} {error['message']}"
        assert fresh.serving() == before
    finally:
        backend.write_text(text)


def test_an_unsupported_version_is_refused(fresh: Operator) -> None:
    (info,) = site(fresh).glob("sglang-*.dist-info")
    metadata = info / "METADATA"
    text = metadata.read_text()
    metadata.write_text(text.replace("Version: 0.5.11", "Version: 0.4.9", 1))
    try:
        error = fresh.deploy(code=3).node["error"]
        assert "0.4.9" in error["message"]
    finally:
        metadata.write_text(text)


def test_a_port_held_by_another_process_is_refused_with_its_owner(fresh: Operator) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    unit = fresh.file_on_node("/etc/systemd/system/squatter.service")
    unit.write_text(
        f"[Service]\nExecStart={fresh.host.venv}/bin/python -m http.server {port} --bind 127.0.0.1\n"
    )
    fresh.on_node("systemctl", "daemon-reload")
    fresh.on_node("systemctl", "start", "squatter.service")
    fresh.profile["port"] = port
    fresh.save()
    try:
        wait_until(
            lambda: "squatter.service" in str(fresh.ops("probe", "--json").json["nodes"][0]["listeners"])
        )
        error = fresh.deploy(code=3).node["error"]
        assert (error["what"], "squatter.service" in error["message"]) == (f"port {port}", True)
    finally:
        fresh.on_node("systemctl", "stop", "squatter.service")
        unit.unlink()
        fresh.on_node("systemctl", "daemon-reload")


def test_a_budget_whose_graphs_do_not_fit_the_gpu_is_refused_with_numbers(fresh: Operator) -> None:
    fresh.profile.update(graph_max_batch=512)
    fresh.save()
    with first_on_path(fresh, "nvidia-smi", SMALL_GPU):
        error = fresh.deploy("--budget", "4000", code=3).node["error"]
    assert "whose graphs need" in error["message"]


def test_a_second_operator_is_refused_while_the_first_is_at_work(fresh: Operator) -> None:
    fresh.profile["environment"]["REFERENCE_ENGINE_FAULT"] = "slow-load=30"
    fresh.save()
    first = fresh.start("deploy", "--yes")
    try:
        wait_until(lambda: fresh.status()["guard"] is not None)
        error = fresh.deploy(code=3).node["error"]
        assert "@" in error["message"] or "run" in error["message"]
    finally:
        assert first.wait(120) == 0


def test_a_lock_left_by_a_dead_operator_is_taken_over_or_removed(fresh: Operator) -> None:
    playbook = fresh.home / "die.yaml"
    playbook.write_text(
        "name: die\nsteps:\n  - lock\n  - command: [/bin/sh, -c, 'kill -9 $PPID']\n    on: operator\n"
    )
    fresh.ops("run", str(playbook), "--yes", code=-9 if fresh.host.kind is Kind.EMBEDDED else None)
    assert fresh.status()["lock"] is not None
    assert fresh.ops("unlock", "--json", code=2).json["error"]["what"] == "lock"
    fresh.ops("unlock", "--force", "--json", code=0)
    assert fresh.status()["lock"] is None
    fresh.deploy()


def test_a_skewed_clock_is_said_and_changes_nothing(fresh: Operator) -> None:
    """A python3 first on the node's PATH, whose time.time() is an hour ahead, stands in for the clock."""
    real = fresh.on_node("python3", "-c", "import sys; print(sys.executable)").strip()
    with first_on_path(fresh, "python3", f"#!{real}\n{AHEAD}"):
        ran = fresh.ops("plan", code=0)
    assert "clock: the node's clock is +3600 s off yours" in ran.err


@pytest.mark.systemd
def test_a_full_disk_at_any_write_leaves_the_node_as_it_was(fresh: Operator) -> None:
    if fresh.host.kind is not Kind.SYSTEMD:
        pytest.skip("an embedded node has no file system of its own to fill")
    before = fresh.serving()
    for kib in (16, 64, 512, 4096):
        fresh.on_node(
            "/bin/sh",
            "-c",
            f"mkdir -p /var/lib/ddtree-ops && mount -t tmpfs -o size={kib}k full /var/lib/ddtree-ops",
        )
        try:
            ran = fresh.deploy(code=None)
            assert ran.code in (1, 3), ran.err
            assert fresh.serving() == before
            assert fresh.healthy()
        finally:
            fresh.on_node(
                "/bin/sh", "-c", "systemctl stop 'ddtree-ops-guard-*' 2>/dev/null; umount /var/lib/ddtree-ops"
            )


@pytest.mark.systemd
def test_a_login_without_sudo_is_refused_and_one_with_sudo_deploys(fresh: Operator) -> None:
    if fresh.host.kind is not Kind.SYSTEMD:
        pytest.skip("an embedded node has one user")
    fresh.entry["user"] = "guest"
    fresh.save()
    assert "sudo" in str(fresh.deploy(code=3).node["error"])
    fresh.entry["user"] = "ops"
    fresh.save()
    assert fresh.deploy().node["outcome"] == "confirmed"


def test_a_hand_on_ctrl_c_puts_the_node_back(fresh: Operator) -> None:
    fresh.profile["environment"]["REFERENCE_ENGINE_FAULT"] = "slow-load=30"
    fresh.save()
    _, unit = fresh.serving()
    first = fresh.start("deploy", "--yes")
    wait_until(lambda: SERVICE in fresh.status()["service"] and fresh.status()["release"] == "1")
    first.send_signal(signal.SIGINT)
    assert first.wait(120) == 130
    assert fresh.serving()[1] == unit
    assert fresh.healthy()


AHEAD = """\
import sys, time
real = time.time
time.time = lambda: real() + 3600
assert sys.argv[1:4] == ["-I", "-S", "-c"]
code = sys.argv[4]
sys.argv = ["-c", *sys.argv[5:]]
exec(code)
"""
