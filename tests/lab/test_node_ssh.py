"""Links to real nodes: who may be trusted, what can go wrong, and that nothing hangs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ddtree_ops.lab.hosts import Kind, Lab
from ddtree_ops.model.errors import OpsError, Refused, Unreachable, UsageError
from ddtree_ops.node.node import Node
from ddtree_ops.node.ssh import Ran, SshLink, SshTarget

from .conftest import Node as LabNode
from .conftest import eventually


@pytest.fixture
def target(lab: Lab) -> Iterator[SshTarget]:
    host = lab.status()[0]
    with lab.entered():
        yield SshTarget(
            name="n1",
            address=host.address,
            port=host.port,
            user=host.user,
            identity_file=str(host.identity_file),
            known_hosts=(str(host.known_hosts),),
            ssh_config=os.devnull,
            connect_timeout_s=5,
        )


@pytest.fixture
def link(target: SshTarget) -> Iterator[SshLink]:
    with SshLink(target) as opened:
        yield opened


def refusal(target: SshTarget) -> OpsError:
    with pytest.raises(OpsError) as caught, SshLink(target):
        pass
    assert (caught.value.node, caught.value.exit_code) == ("n1", 3)
    return caught.value


def generate_key(path: Path, passphrase: str = "") -> Path:
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)), check=True)
    return path


def known_name(target: SshTarget) -> str:
    return target.address if target.port == 22 else f"[{target.address}]:{target.port}"


keygen = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None,
    reason="it follows a command of OpenSSH's client, which is not installed",
)


class TestHostKeys:
    @keygen
    def test_an_unknown_key_is_refused_until_the_shown_command_accepts_it(
        self, target: SshTarget, tmp_path: Path
    ) -> None:
        known = tmp_path / "known hosts"
        stranger = replace(target, known_hosts=(str(known),))
        error = refusal(stranger)
        line = Path(target.known_hosts[0]).read_text()
        printed = subprocess.run(
            ("ssh-keygen", "-l", "-f", "-"), input=line, capture_output=True, text=True, check=True
        )
        assert any(word in error.message for word in printed.stdout.split() if word.startswith("SHA256:"))
        subprocess.run(error.hint.partition(": ")[2], shell=True, check=True)
        with SshLink(stranger) as link:
            assert link.run(("true",), timeout_s=10).code == 0

    @keygen
    def test_a_changed_key_is_refused_loudly_until_the_shown_command_forgets_it(
        self, target: SshTarget, tmp_path: Path
    ) -> None:
        other = generate_key(tmp_path / "other").with_suffix(".pub").read_text().split()
        known = tmp_path / "known_hosts"
        known.write_text(f"{known_name(target)} {other[0]} {other[1]}\n")
        fooled = replace(target, known_hosts=(str(known),))
        error = refusal(fooled)
        assert isinstance(error, Refused)
        assert "HAS CHANGED" in error.message
        subprocess.run(error.hint.partition(": ")[2], shell=True, check=True, capture_output=True)
        assert "not in" in refusal(fooled).message

    def test_a_known_hosts_file_of_nonsense_trusts_nobody(self, target: SshTarget, tmp_path: Path) -> None:
        known = tmp_path / "known_hosts"
        known.write_text(f"{known_name(target)} ssh-ed25519 notbase64!\n\x00\xff\n", encoding="latin-1")
        refusal(replace(target, known_hosts=(str(known),)))


class TestLogin:
    @keygen
    def test_a_key_that_the_node_does_not_know_is_told_with_what_to_do(
        self, target: SshTarget, tmp_path: Path
    ) -> None:
        error = refusal(replace(target, identity_file=str(generate_key(tmp_path / "mine"))))
        assert isinstance(error, Unreachable)
        assert "login refused" in error.message
        assert "ssh-copy-id" in error.hint

    @keygen
    def test_a_key_with_a_passphrase_wants_an_agent(self, target: SshTarget, tmp_path: Path) -> None:
        key = generate_key(tmp_path / "locked", "secret")
        error = refusal(replace(target, identity_file=str(key)))
        assert error.message == "the key has a passphrase, and no agent holds it"
        assert error.hint == f"ssh-add {key}"

    def test_a_key_file_that_is_not_there_is_named(self, target: SshTarget, tmp_path: Path) -> None:
        error = refusal(replace(target, identity_file=str(tmp_path / "none")))
        assert error.message == f"no such key file: {tmp_path / 'none'}"


class TestReaching:
    def test_a_port_where_nobody_listens_is_told(self, target: SshTarget) -> None:
        error = refusal(replace(target, port=1))
        assert error.message == "connection refused"
        assert error.what == f"{target.user}@{target.address}:1"

    def test_a_name_that_does_not_resolve_is_told(self, target: SshTarget) -> None:
        assert "does not resolve" in refusal(replace(target, address="no-such-host.invalid")).message

    def test_a_port_that_speaks_something_else_is_told(self, target: SshTarget) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            thread = threading.Thread(target=_answer_once, args=(server, b"HTTP/1.1 400 Bad Request\r\n\r\n"))
            thread.start()
            error = refusal(replace(target, address="127.0.0.1", port=server.getsockname()[1]))
            thread.join()
        assert "no SSH server answers there" in error.message

    def test_a_port_that_says_nothing_is_left_after_the_timeout(self, target: SshTarget) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            started = time.monotonic()
            refusal(replace(target, address="127.0.0.1", port=server.getsockname()[1], connect_timeout_s=1))
        assert time.monotonic() - started < 10

    def test_an_alias_behind_an_include_and_a_jump_leads_to_the_node(
        self, target: SshTarget, tmp_path: Path
    ) -> None:
        login = f"  HostName {target.address}\n  Port {target.port}\n  User {target.user}\n  IdentityFile {target.identity_file}\n"
        (tmp_path / "gateways").write_text(f"Host gate\n{login}")
        config = tmp_path / "config"
        config.write_text(f"Include {tmp_path}/gate*\nHost inner\n{login}  ProxyJump gate\n")
        alias = replace(
            target, address="inner", port=None, user=None, identity_file=None, ssh_config=str(config)
        )
        with SshLink(alias) as link:
            assert link.run(("echo", "through"), timeout_s=10).stdout == b"through\n"
        with SshLink(replace(target, jump=f"{target.user}@{target.address}:{target.port}")) as link:
            assert link.run(("echo", "again"), timeout_s=10).stdout == b"again\n"

    def test_a_gateway_that_can_not_reach_the_node_is_told(self, target: SshTarget) -> None:
        error = refusal(replace(target, port=1, jump=f"{target.user}@{target.address}:{target.port}"))
        assert "the gateway can't reach it" in error.message

    def test_an_ssh_config_that_is_not_there_is_a_usage_error(
        self, target: SshTarget, tmp_path: Path
    ) -> None:
        with (
            pytest.raises(UsageError, match="no such file"),
            SshLink(replace(target, ssh_config=str(tmp_path / "none"))),
        ):
            pass


def _answer_once(server: socket.socket, answer: bytes) -> None:
    near, _ = server.accept()
    with near:
        near.sendall(answer)


class TestCommands:
    def test_words_arrive_as_they_were_given(self, link: SshLink) -> None:
        words = ("a b", "$HOME", "`id`", "'\"", "*", "", "line\nbreak", "ü→", "\\")
        done = link.run(("printf", "%s|", *words), timeout_s=10)
        assert done == Ran(code=0, stdout="".join(word + "|" for word in words).encode(), stderr=b"")

    def test_exit_codes_and_both_outputs_come_back(self, link: SshLink) -> None:
        done = link.run(("sh", "-c", "echo out; echo err >&2; exit 7"), timeout_s=10)
        assert done == Ran(code=7, stdout=b"out\n", stderr=b"err\n")

    def test_large_binary_goes_both_ways(self, link: SshLink) -> None:
        data = bytes(range(256)) * 8192
        assert link.run(("cat",), stdin=data, timeout_s=60).stdout == data

    def test_much_on_stderr_does_not_block_stdout(self, link: SshLink) -> None:
        done = link.run(("sh", "-c", "head -c 3000000 /dev/zero >&2; echo done"), timeout_s=60)
        assert (done.stdout, len(done.stderr)) == (b"done\n", 3000000)

    def test_a_command_that_reads_nothing_is_no_error(self, link: SshLink) -> None:
        assert link.run(("sh", "-c", "exit 3"), stdin=b"x" * 4_000_000, timeout_s=60).code == 3

    def test_a_command_that_is_late_is_left_and_the_link_stays(self, link: SshLink) -> None:
        started = time.monotonic()
        with pytest.raises(Unreachable, match="did not end within 1 s"):
            link.run(("sleep", "30"), timeout_s=1)
        assert time.monotonic() - started < 10
        assert link.run(("echo", "on"), timeout_s=10).stdout == b"on\n"

    def test_each_command_is_one_round_trip(self, link: SshLink) -> None:
        for _ in range(3):
            link.run(("true",), timeout_s=10)
        assert link.round_trips == 3

    def test_commands_may_run_side_by_side(self, link: SshLink) -> None:
        with ThreadPoolExecutor(4) as pool:
            outputs = list(pool.map(lambda i: link.run(("echo", str(i)), timeout_s=20).stdout, range(8)))
        assert outputs == [f"{i}\n".encode() for i in range(8)]

    def test_a_closed_link_says_so(self, target: SshTarget) -> None:
        link = SshLink(target)
        with link:
            pass
        with pytest.raises(Unreachable, match="the link was lost"):
            link.run(("true",), timeout_s=5)


def test_a_link_that_dies_under_a_command_is_noticed_in_time(lab: Lab, target: SshTarget) -> None:
    name = lab.status()[0].name
    with SshLink(replace(target, dead_after_s=2)) as link:
        cutter = threading.Timer(0.5, lab.cut_link, (name,))
        cutter.start()
        started = time.monotonic()
        try:
            with pytest.raises(Unreachable) as caught:
                link.run(("sleep", "60"), timeout_s=120)
            assert time.monotonic() - started < 20
            assert "link was lost" in caught.value.message
            assert "ddtree-ops status --host n1" in caught.value.hint
        finally:
            cutter.join()
            lab.restore_link(name)


class TestTunnels:
    @pytest.fixture
    def engine(self, node: LabNode) -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        node.file("/opt").mkdir(exist_ok=True)
        node.file("/opt/tiny_engine.py").write_bytes(Path(__file__).with_name("tiny_engine.py").read_bytes())
        text = f"[Service]\nExecStart=/usr/bin/env python3 {node.path('/opt/tiny_engine.py')} --port {port}\n"
        node.unit("tunnel.service", text)
        assert node.sh("systemctl", "start", "tunnel").code == 0
        return port

    def test_http_goes_through_from_many_sides_at_once(self, link: SshLink, engine: int) -> None:
        with link.forward(engine) as port:
            _until_open(port)
            with ThreadPoolExecutor(8) as pool:
                answers = set(pool.map(lambda _: _post(port), range(24)))
        assert answers == {b'{"tokens": [104, 105]}'}

    def test_a_port_where_nobody_listens_closes_the_connection(self, link: SshLink) -> None:
        with link.forward(1) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as near:
            assert near.recv(1) == b""

    def test_nothing_is_left_when_a_tunnel_ends_under_an_open_connection(
        self, link: SshLink, engine: int
    ) -> None:
        before = set(threading.enumerate())
        with link.forward(engine) as port:
            _until_open(port)
            near = socket.create_connection(("127.0.0.1", port), timeout=10)
            near.sendall(b"POST /generate HTTP/1.1\r\n")
        with (
            near,
            suppress(ConnectionResetError),
        ):  # how the kernel closes what was still in the listener's queue
            assert near.recv(1) == b""
        eventually(lambda: [one for one in threading.enumerate() if one not in before], [])


def _post(port: int) -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/tokenize", data=b'{"prompt": "hi"}')
    with urllib.request.urlopen(request, timeout=20) as answer:
        return bytes(answer.read())


def _until_open(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        with suppress(OSError):
            _post(port)
            return
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("lab", [pytest.param(Kind.SYSTEMD, marks=pytest.mark.systemd)], indirect=True)
class TestUsers:
    """Logins that are not root's: an embedded node has one user."""

    @pytest.fixture
    def user(self, node: LabNode, target: SshTarget) -> Iterator[SshTarget]:
        public = Path(f"{target.identity_file}.pub").read_text()
        node.shell(
            "id carl || useradd --create-home --shell /bin/bash carl; mkdir -p ~carl/.ssh; cat > ~carl/.ssh/authorized_keys; chown -R carl ~carl/.ssh",
            public,
        )
        yield replace(target, user="carl")
        node.shell(
            "rm -f /etc/sudoers.d/carl /usr/local/bin/bare ~carl/.bashrc; usermod --shell /bin/bash carl"
        )

    def test_a_user_with_sudo_works_as_root(self, user: SshTarget, node: LabNode) -> None:
        node.shell("echo 'carl ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/carl")
        with SshLink(user) as link:
            assert link.run(("id", "-un"), timeout_s=10).stdout == b"root\n"
            facts = Node("n1", link, "none").probe(venv="")
        assert (facts.user, facts.root) == ("root", True)

    def test_a_user_without_sudo_is_refused_with_the_way_out(self, user: SshTarget) -> None:
        with SshLink(user) as link, pytest.raises(Refused) as caught:
            Node("n1", link, "none").probe(venv="")
        assert (caught.value.node, caught.value.what, caught.value.exit_code) == ("n1", "sudo", 3)
        assert "NOPASSWD" in caught.value.hint

    def test_a_user_who_does_not_ask_for_sudo_is_told_what_root_is_needed_for(self, user: SshTarget) -> None:
        with SshLink(replace(user, sudo=False)) as link:
            node = Node("n1", link, "none")
            assert node.probe(venv="").root is False
            with pytest.raises(Refused, match="permission denied") as caught:
                node.lock(who="a@b", run="r", ttl_s=5)
        assert caught.value.hint == "log in as root, or set sudo: true for this host"

    def test_a_node_without_python_is_told(self, user: SshTarget, node: LabNode) -> None:
        node.shell(
            "cat > /usr/local/bin/bare; chmod 755 /usr/local/bin/bare; usermod --shell /usr/local/bin/bare carl",
            '#!/bin/sh\nPATH=/nowhere exec /bin/sh "$@"\n',
        )
        with (
            SshLink(replace(user, sudo=False)) as link,
            pytest.raises(Refused, match="expected Python") as caught,
        ):
            Node("n1", link, "none").probe(venv="")
        assert (caught.value.what, caught.value.hint) == ("python3", "install it")

    def test_what_a_login_script_prints_does_not_disturb(self, user: SshTarget, node: LabNode) -> None:
        node.shell("cat > ~carl/.bashrc", "echo Welcome to the machine\n")
        with SshLink(replace(user, sudo=False)) as link:
            assert Node("n1", link, "none").probe(venv="").hostname == node.host.name
