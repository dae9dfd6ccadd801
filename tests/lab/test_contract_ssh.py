"""What the tool relies on from SSH and from the link: the same on the embedded node as with OpenSSH."""

from __future__ import annotations

import asyncio
import time

import asyncssh
import pytest

from .conftest import Done, Node


def test_a_command_gets_stdin_and_gives_output_and_status(node: Node) -> None:
    assert node.shell("cat; echo oops >&2; exit 7", stdin="in") == Done(7, "in", "oops\n")


def test_large_input_and_output_arrive_whole(node: Node) -> None:
    text = "0123456789abcdef" * 200_000
    done = node.shell("cat", stdin=text)
    assert (done.code, done.out == text) == (0, True)


def test_a_python_takes_a_program_from_stdin(node: Node) -> None:
    done = node.shell(
        "python3 -I -S - one", stdin="import sys; print(sys.argv[1], sys.version_info >= (3, 8))"
    )
    assert done == Done(0, "one True\n", "")


def test_the_port_of_a_loopback_server_can_be_reached_through_the_link(node: Node) -> None:
    server = "import socket; s=socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); c,_=s.accept(); c.sendall(c.recv(9).upper())"

    async def go() -> bytes:
        link = await node._connect({})
        async with link:
            process = await link.create_process(f'python3 -c "{server}"')
            port = int(await process.stdout.readline())
            reader, writer = await link.open_connection("127.0.0.1", port)
            writer.write(b"through")
            return await reader.read(7)

    assert node.wait_for(go(), 20) == b"THROUGH"


def test_a_closed_port_is_refused_through_the_link(node: Node) -> None:
    async def go() -> None:
        async with await node._connect({}) as link:
            await link.open_connection("127.0.0.1", 1)

    with pytest.raises(asyncssh.ChannelOpenError):
        node.wait_for(go(), 20)


def test_another_key_is_not_let_in(node: Node) -> None:
    with pytest.raises(asyncssh.PermissionDenied):
        node.connect(client_keys=[asyncssh.generate_private_key("ssh-ed25519")])


def test_a_password_is_not_let_in(node: Node) -> None:
    with pytest.raises(asyncssh.PermissionDenied):
        node.connect(client_keys=None, password="x")


def test_the_host_key_is_the_one_in_known_hosts(node: Node) -> None:
    with pytest.raises(asyncssh.HostKeyNotVerifiable):
        node.connect(known_hosts=asyncssh.import_known_hosts(""))


def test_the_known_hosts_and_key_files_are_private(node: Node) -> None:
    assert node.host.identity_file.stat().st_mode & 0o077 == 0
    assert node.lab.state.stat().st_mode & 0o077 == 0


def test_many_sessions_share_one_link(node: Node) -> None:
    async def go() -> list[int | None]:
        async with await node._connect({}) as link:
            done = await asyncio.gather(*(link.run(f"sleep 0.2; exit {code}") for code in range(8)))
            return [one.exit_status for one in done]

    assert node.wait_for(go(), 20) == list(range(8))


def test_a_command_outlives_its_client(node: Node) -> None:
    path = node.path("/var/lib/outlives")

    async def go() -> None:
        link = await node._connect({})
        process = await link.create_process(f"sleep 1; echo done > {path}")
        await asyncio.sleep(0.2)
        process.channel.get_connection().abort()

    node.wait_for(go(), 20)
    time.sleep(1.5)
    assert node.file("/var/lib/outlives").read_text() == "done\n"


def test_a_cut_link_is_silent_and_a_restored_one_goes_on(node: Node) -> None:
    async def beat(process: asyncssh.SSHClientProcess[str]) -> str:
        process.stdin.write("beat\n")
        return await asyncio.wait_for(process.stdout.readline(), 1.5)

    async def begin() -> asyncssh.SSHClientProcess[str]:
        return await (await node._connect({})).create_process("cat")

    process = node.wait_for(begin(), 20)
    assert node.wait_for(beat(process), 5) == "beat\n"
    node.lab.cut_link(node.host.name)
    try:
        with pytest.raises(TimeoutError):
            node.wait_for(beat(process), 5)
        with pytest.raises((OSError, TimeoutError, asyncssh.Error)):
            node.wait_for(node._connect({"connect_timeout": 1, "login_timeout": 1}), 10)
    finally:
        node.lab.restore_link(node.host.name)
    assert node.wait_for(asyncio.wait_for(process.stdout.readline(), 15), 20) == "beat\n"
    process.channel.get_connection().abort()


def test_a_node_without_its_link_still_runs_commands_past_it(node: Node) -> None:
    node.lab.cut_link(node.host.name)
    try:
        done = node.lab.run(node.host.name, ("systemctl", "is-active", "sglang-ddtree"))
        assert done.returncode in (0, 3)
    finally:
        node.lab.restore_link(node.host.name)
