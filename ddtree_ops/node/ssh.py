"""SSH to one node: the only module that speaks to fabric and paramiko."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import shlex
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import fabric
import paramiko
from fabric.connection import derive_shorthand

from ddtree_ops.model.errors import Refused, Unreachable, UsageError
from ddtree_ops.node.ssh_config import read_ssh_config
from ddtree_ops.node.tunnel import Pipe, Tunnel

DEFAULT_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts")
CHUNK = 65536
SSH_PORT = 22
NO_SUDO = 97  # exit code of AS_ROOT where sudo would ask for a password, or is not there
# A node in a folder of its own belongs to the login: nothing there needs root.
BECOME_ROOT = (
    '{ [ -n "$DDTREE_OPS_ROOT" ] || [ "$(id -u)" = 0 ]; } && exec "$@"; '
    f'sudo -n true 2>/dev/null || exit {NO_SUDO}; exec sudo -n -- "$@"'
)
AS_ROOT = ("sh", "-c", BECOME_ROOT, "as-root")
BY_SIGNAL = -1  # paramiko's exit status of a command that a signal ended

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # it logs tracebacks of what we map


@dataclass(frozen=True, slots=True, kw_only=True)
class SshTarget:
    """Where a node is and how to log in; None leaves the matter to ssh_config."""

    name: str  # how the node is called in messages
    address: str  # host name, address or ssh_config alias
    port: int | None = None
    user: str | None = None
    identity_file: str | None = None
    jump: str | None = None  # "user@host:port[,…]" in the order of travel; None: ssh_config's ProxyJump
    known_hosts: tuple[str, ...] = ()  # (): ssh_config's UserKnownHostsFile, else OpenSSH's defaults
    ssh_config: str | None = None  # path; None: ~/.ssh/config and /etc/ssh/ssh_config
    sudo: bool = True  # run everything through `sudo -n`, unless the login is root
    connect_timeout_s: float = 10.0
    dead_after_s: float = 40.0  # a link that stays silent for so long is dead


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A finished command."""

    code: int  # -1: a signal ended it
    stdout: bytes
    stderr: bytes


class SshLink:
    """One verified SSH connection; `with SshLink(target) as link:` opens and closes it.

    Commands and tunnels may be used from several threads. No call outlives its own deadline, and
    none outlives the link by more than `dead_after_s`.
    """

    def __init__(self, target: SshTarget) -> None:
        self.target = target
        self.round_trips = 0  # one per command run
        self._counting = threading.Lock()
        self._hops: list[_Hop] = []
        self._heartbeat: _Heartbeat | None = None

    def __enter__(self) -> SshLink:
        try:
            self._connect()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends heartbeat, connection and gateways; may be repeated."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        for hop in reversed(self._hops):
            hop.close()
        self._hops = []

    @property
    def user(self) -> str:
        """Who is logged in; "" while the link is closed."""
        return str(self._hops[-1].connection.user) if self._hops else ""

    def run(self, argv: tuple[str, ...], *, stdin: bytes = b"", timeout_s: float) -> Ran:
        """Runs argv to its end, as root where the target asks for sudo; Unreachable when it can't."""
        prefix = AS_ROOT if self.target.sudo and self.user != "root" else ()
        ran = self._run((*prefix, *argv), argv[0], stdin, timeout_s)
        if prefix and ran.code == NO_SUDO:
            raise self._no_sudo()
        return ran

    def forward(self, port: int, host: str = "127.0.0.1") -> AbstractContextManager[int]:
        """A local port that leads to host:port as seen from the node, while the context lasts."""

        def connect() -> Pipe:
            try:
                return self._transport().open_channel(
                    "direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=self.target.connect_timeout_s
                )
            except paramiko.SSHException as error:
                raise ConnectionError(str(error)) from error

        return Tunnel(connect)

    def _no_sudo(self) -> Refused:
        rule = f"{self.user} ALL=(ALL) NOPASSWD: ALL"
        return Refused(
            "sudo",
            f"{self.user} can't become root without a password, expected `sudo -n true` to work",
            hint=f"on the node, as root: echo '{rule}' > /etc/sudoers.d/ddtree-ops; or log in as root",
            node=self.target.name,
        )

    def _run(self, argv: tuple[str, ...], name: str, stdin: bytes, timeout_s: float) -> Ran:
        with self._counting:
            self.round_trips += 1
        try:
            with contextlib.closing(self._transport().open_session(timeout=timeout_s)) as channel:
                return _run_in(channel, shlex.join(argv), stdin, timeout_s)
        except TimeoutError as error:
            raise self._lost(f"did not end within {timeout_s:.0f} s", name) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._lost(f"the link was lost ({error or type(error).__name__})", name) from error

    def _lost(self, why: str, command: str) -> Unreachable:
        hint = f"look at the node, then: ddtree-ops status --host {self.target.name}"
        return Unreachable(f"command {command}", why, hint=hint, node=self.target.name)

    def _transport(self) -> paramiko.Transport:
        if not self._hops:
            raise EOFError("it is closed")
        return self._hops[-1].transport()

    def _connect(self) -> None:
        config = _Config(self.target)
        for jump in (*config.jumps(), None):
            hop = config.hop(jump)
            gateway = self._hops[-1] if self._hops else None
            self._hops.append(hop)
            with _in_words(self.target, hop):
                hop.open(gateway)
        self._heartbeat = _Heartbeat(self._transport(), self.target.dead_after_s)
        self._heartbeat.start()


def _run_in(channel: paramiko.Channel, command: str, stdin: bytes, timeout_s: float) -> Ran:
    """One command in a fresh channel. At the deadline the channel is closed, which ends every wait."""
    late = threading.Event()

    def give_up() -> None:
        late.set()
        channel.close()

    deadline = threading.Timer(timeout_s, give_up)
    deadline.start()
    try:
        channel.exec_command(command)
        errors: list[bytes] = []
        reader = threading.Thread(target=_gather, args=(channel.recv_stderr, errors), daemon=True)
        reader.start()
        with contextlib.suppress(OSError):  # a command that has ended reads no further; its code tells why
            channel.sendall(stdin)
            channel.shutdown_write()
        output: list[bytes] = []
        _gather(channel.recv, output)
        reader.join()
        code = channel.recv_exit_status()
    except (paramiko.SSHException, OSError, EOFError):
        if late.is_set():
            raise TimeoutError from None
        raise
    finally:
        deadline.cancel()
    if late.is_set():
        raise TimeoutError
    if code == BY_SIGNAL and not channel.get_transport().is_active():
        raise EOFError("it closed while the command ran")
    return Ran(code=code, stdout=b"".join(output), stderr=b"".join(errors))


def _gather(read: Callable[[int], bytes], into: list[bytes]) -> None:
    while data := read(CHUNK):
        into.append(data)


class _Heartbeat(threading.Thread):
    """Asks the other end for a sign of life, and closes the transport when none comes.

    TCP alone may take a quarter of an hour, and behind a gateway it never learns.
    """

    def __init__(self, transport: paramiko.Transport, dead_after_s: float) -> None:
        super().__init__(name="ssh heartbeat", daemon=True)
        self._transport, self._dead_after_s = transport, dead_after_s
        self._over = threading.Event()

    def stop(self) -> None:
        self._over.set()

    def run(self) -> None:
        while not self._over.wait(self._dead_after_s / 4):
            patience = threading.Timer(self._dead_after_s * 3 / 4, self._transport.close)
            patience.start()
            try:
                self._transport.global_request("keepalive@openssh.com", wait=True)
            except (paramiko.SSHException, OSError, EOFError):
                return
            finally:
                patience.cancel()
            if not self._transport.is_active():
                return


class _Config:
    """ssh_config as it bears on one target."""

    def __init__(self, target: SshTarget) -> None:
        self._target = target
        try:
            parsed = paramiko.SSHConfig.from_text(read_ssh_config(target.ssh_config))
        except paramiko.SSHException as error:
            raise UsageError(target.ssh_config or "~/.ssh/config", str(error), node=target.name) from error
        self._fabric = fabric.Config(ssh_config=parsed, lazy=True)

    def jumps(self) -> tuple[str, ...]:
        """Gateways in the order of travel; a gateway's own ProxyJump comes before it."""
        if self._target.jump:
            return self._travel(self._target.jump, set())
        address = self._target.address
        return self._travel(self._lookup(address).get("proxyjump", "none"), {address})

    def hop(self, jump: str | None) -> _Hop:
        """A connection not opened yet: to a gateway, or (None) to the target itself."""
        target = self._target
        own: dict[str, Any] = {} if jump else {"user": target.user, "port": target.port}
        timeout_s = max(1, round(target.connect_timeout_s))
        connection = fabric.Connection(
            jump or target.address,
            config=self._fabric.clone(),
            gateway=False,
            connect_timeout=timeout_s,
            **own,
        )
        found = self._lookup(connection.original_host)
        # not through the constructor: it would add ssh_config's keys, those that do not exist too
        connection.connect_kwargs = self._login(found, target.identity_file)
        named = target.known_hosts or tuple(shlex.split(found.get("userknownhostsfile", "")))
        files = tuple(Path(name).expanduser() for name in named or DEFAULT_KNOWN_HOSTS)
        command = "" if jump else found.get("proxycommand", "none")
        return _Hop(connection, files, "" if command.lower() == "none" else command, timeout_s)

    def _lookup(self, alias: str) -> dict[str, Any]:
        return dict(self._fabric.base_ssh_config.lookup(alias))

    def _travel(self, jumps: str, seen: set[str]) -> tuple[str, ...]:
        if jumps.lower() == "none":
            return ()
        first, *rest = (jump.strip() for jump in jumps.split(","))
        alias = str(derive_shorthand(first)["host"])
        if alias in seen:
            return ()
        before = self._travel(self._lookup(alias).get("proxyjump", "none"), {*seen, alias})
        return (*before, first, *rest)

    def _login(self, found: dict[str, Any], identity: str | None) -> dict[str, Any]:
        """paramiko's arguments; ssh_config may name keys that are not there, as OpenSSH's defaults do."""
        configured = [path for path in found.get("identityfile", []) if Path(path).expanduser().is_file()]
        keys = [str(Path(identity).expanduser())] if identity else configured
        only = str(found.get("identitiesonly", "no")).lower() == "yes"
        return {
            "key_filename": keys,
            "allow_agent": not (only and keys),
            "look_for_keys": not keys,
            "banner_timeout": self._target.connect_timeout_s,
            "auth_timeout": max(self._target.connect_timeout_s, 30.0),
        }


class _Hop:
    """One connection of the way, and what it is checked against."""

    def __init__(
        self, connection: fabric.Connection, known_hosts: tuple[Path, ...], command: str, timeout_s: float
    ) -> None:
        self.connection, self.known_hosts = connection, known_hosts
        self._command, self._timeout_s = command, timeout_s

    @property
    def where(self) -> str:
        return f"{self.connection.user}@{self.connection.host}:{self.connection.port}"

    @property
    def authenticating(self) -> bool:
        """Whether the host's key was accepted, and the login was at issue."""
        transport = self.connection.client.get_transport()
        return transport is not None and transport.auth_handler is not None

    def transport(self) -> paramiko.Transport:
        transport: paramiko.Transport | None = self.connection.client.get_transport()
        if transport is None or not transport.is_active():
            raise EOFError("it is closed")
        return transport

    def open(self, gateway: _Hop | None) -> None:
        """Connects over the gateway, or straight and without Nagle's delay."""
        client = self.connection.client
        client.set_missing_host_key_policy(_RefuseUnknown())
        for path in self.known_hosts:
            if path.is_file():
                client.load_system_host_keys(str(path))
        self.connection.connect_kwargs["sock"] = self._socket(gateway)
        self.connection.open()

    def close(self) -> None:
        self.connection.client.close()

    def _socket(self, gateway: _Hop | None) -> Any:
        address = (self.connection.host, self.connection.port)
        if gateway is not None:
            return gateway.transport().open_channel("direct-tcpip", address, ("", 0), timeout=self._timeout_s)
        if self._command:
            return paramiko.ProxyCommand(self._command)
        sock = socket.create_connection(address, timeout=self._timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock


class _UnknownKey(paramiko.SSHException):
    """A host key that no known_hosts file has."""

    def __init__(self, hostname: str, key: paramiko.PKey) -> None:
        super().__init__(hostname)
        self.hostname, self.key = hostname, key


class _RefuseUnknown(paramiko.MissingHostKeyPolicy):
    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        del client
        raise _UnknownKey(hostname, key)


def fingerprint(key: paramiko.PKey) -> str:
    """As ssh prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")


@contextlib.contextmanager
def _in_words(target: SshTarget, hop: _Hop) -> Iterator[None]:
    """What goes wrong while connecting, as errors with a node and a hint."""
    try:
        yield
    except (paramiko.SSHException, OSError, EOFError, ValueError) as error:
        raise _refusal(target, hop, error) or _unreachable(target, hop, error) from error


def _refusal(target: SshTarget, hop: _Hop, error: Exception) -> Refused | None:
    """The host key's troubles: nothing is said to a host that can't show who it is."""
    file = shlex.quote(str(hop.known_hosts[0]))
    if isinstance(error, _UnknownKey):
        line = f"{error.hostname} {error.key.get_name()} {error.key.get_base64()}"
        return Refused(
            "host key",
            f"{hop.where} shows {error.key.get_name()} {fingerprint(error.key)}, which is not in {file}",
            hint=f"if the fingerprint is the node's own: echo {shlex.quote(line)} >> {file}",
            node=target.name,
        )
    if isinstance(error, paramiko.BadHostKeyException):
        name, port = hop.connection.host, hop.connection.port
        entry = name if port == SSH_PORT else f"[{name}]:{port}"
        return Refused(
            "host key",
            f"HAS CHANGED: {hop.where} shows {error.key.get_name()} {fingerprint(error.key)}, "
            f"expected {error.expected_key.get_name()} {fingerprint(error.expected_key)}; "
            "someone may be in between, or the node was set up anew",
            hint=f"only if you know that it was: ssh-keygen -R {shlex.quote(entry)} -f {file}",
            node=target.name,
        )
    return None


def _unreachable(target: SshTarget, hop: _Hop, error: Exception) -> Unreachable:
    login = f"-p {hop.connection.port} {hop.connection.user}@{hop.connection.host}"
    hint = f"try: ssh -v {login}"
    if isinstance(error, paramiko.PasswordRequiredException):
        message = "the key has a passphrase, and no agent holds it"
        hint = "ssh-add " + " ".join(hop.connection.connect_kwargs["key_filename"])
    elif isinstance(error, paramiko.ChannelException):
        message, hint = f"the gateway can't reach it: {error.text}", "check the address, port and jump"
    elif isinstance(error, socket.gaierror):
        message, hint = f"the name {hop.connection.host} does not resolve", "correct the host's address"
    elif isinstance(error, TimeoutError):
        message = f"no answer within {target.connect_timeout_s:.0f} s"
    elif isinstance(error, FileNotFoundError):
        message, hint = f"no such key file: {error.filename}", "correct identity_file"
    elif hop.authenticating:
        message = f"login refused: {error or type(error).__name__}"
        hint = f"give it your key: ssh-copy-id {login}; or set user and identity_file"
    elif isinstance(error, OSError):
        message = (error.strerror or str(error)).lower()
    else:
        message = f"no SSH server answers there: {error or type(error).__name__}"
    return Unreachable(hop.where, message, hint=hint, node=target.name)
