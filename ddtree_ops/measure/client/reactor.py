"""A selector loop that keeps bytes with the time of their arrival and does nothing else with them.

It is not asyncio: at 512 streams with a step every 12 ms, asyncio's handles and callbacks take most
of a core, and a core that is late sends late. Pieces bear the kernel's stamp, or where it gives
none the time at which the selector reported them, since all of a batch had arrived by then.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ddtree_ops.measure.client.arrival import Arrivals, ask
from ddtree_ops.measure.client.exchange import Exchange
from ddtree_ops.measure.client.sample import Outcome
from ddtree_ops.measure.client.wire import Framing

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
PIECE = 1 << 14  # larger buffers come from mmap, and cost several times the call itself
Finished = Callable[[Exchange], None]


class Connection:
    """One TCP connection, reused for one exchange after the other."""

    __slots__ = ("exchange", "fresh", "open", "sock", "unsent")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.open = False
        self.fresh = True  # has not carried a response yet
        self.exchange: Exchange | None = None
        self.unsent = memoryview(b"")


class Reactor:
    """Carries exchanges to one address; `finished` is called from within `turn` as each one ends."""

    def __init__(self, host: str, port: int, finished: Finished) -> None:
        self._address = self._resolve(host, port)
        self._finished = finished
        self._selector = selectors.DefaultSelector()
        self._arrivals = Arrivals()
        self._connections: set[Connection] = set()
        self._idle: list[Connection] = []

    @staticmethod
    def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[object, ...]]:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return family, address

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in tuple(self._connections):
            self._drop(connection)
        self._selector.close()

    @property
    def live(self) -> list[Exchange]:
        """The exchanges that are on the wire."""
        return [c.exchange for c in self._connections if c.exchange is not None]

    def open_ahead(self, count: int) -> None:
        """Opens connections so that no request has to wait for a handshake."""
        while len(self._idle) < count:
            self._idle.append(self._connect())

    def start(self, exchange: Exchange) -> None:
        """Puts one exchange on an idle connection, or on a new one."""
        connection = self._idle.pop() if self._idle else self._connect()
        connection.exchange, connection.unsent = exchange, memoryview(exchange.wire)
        if connection.open:
            self._send(connection)

    def turn(self, timeout_s: float) -> int:
        """Waits for the network once and handles what came; returns the number of ready connections."""
        ready = self._selector.select(timeout_s)
        self._arrivals.begin()
        for key, events in ready:
            connection = key.data
            if connection not in self._connections:  # dropped while handling an earlier one of this batch
                continue
            if events & READ:
                self._receive(connection)
            elif events & WRITE:
                self._writable(connection)
        return len(ready)

    def stop(self, exchange: Exchange, outcome: Outcome, detail: str = "") -> None:
        """Ends an exchange by closing its connection; SGLang then aborts the request."""
        for connection in tuple(self._connections):
            if connection.exchange is exchange:
                self._end(connection, outcome, detail)
                return

    def _connect(self) -> Connection:
        family, address = self._address
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask(sock)
        connection = Connection(sock)
        self._connections.add(connection)
        sock.connect_ex(address)  # a refusal shows as a ready socket
        self._selector.register(sock, READ | WRITE, connection)
        return connection

    def _writable(self, connection: Connection) -> None:
        if not connection.open:
            code = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._end(connection, Outcome.LOST, errno.errorcode.get(code, str(code)))
                return
            connection.open = True
        if connection.unsent:
            self._send(connection)
        else:
            self._selector.modify(connection.sock, READ, connection)

    def _send(self, connection: Connection) -> None:
        exchange = connection.exchange
        if exchange is not None and not exchange.sent:
            exchange.sent = time.perf_counter_ns()
        try:
            sent = connection.sock.send(connection.unsent)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._broken(connection, str(error))
            return
        connection.unsent = connection.unsent[sent:]
        wanted = READ | WRITE if connection.unsent else READ
        if self._selector.get_key(connection.sock).events != wanted:
            self._selector.modify(connection.sock, wanted, connection)

    def _receive(self, connection: Connection) -> None:
        try:
            piece, stamp = self._arrivals.receive(connection.sock, PIECE)
        except BlockingIOError:
            return
        except OSError as error:
            self._broken(connection, str(error))
            return
        exchange = connection.exchange
        if not piece or exchange is None:
            self._broken(connection, "the server closed the connection")
            return
        try:
            complete = exchange.take(piece, stamp)
        except ValueError as error:
            self._end(connection, Outcome.LOST, str(error))
            return
        if complete:
            self._complete(connection, exchange, stamp)

    def _complete(self, connection: Connection, exchange: Exchange, stamp: int) -> None:
        connection.exchange, connection.fresh = None, False
        if exchange.head is not None and exchange.head.keep_alive and not connection.unsent:
            self._idle.append(connection)
        else:
            self._drop(connection)
        exchange.finish(Outcome.OK, stamp)
        self._finished(exchange)

    def _broken(self, connection: Connection, detail: str) -> None:
        """A connection that closed: the end of a response, a stale idle one, or a loss."""
        exchange = connection.exchange
        if exchange is None:
            self._drop(connection)
        elif not exchange.pieces and not connection.fresh:  # closed while idle, before it saw the request
            for stale in (connection, *self._idle):
                self._drop(stale)
            exchange.sent = 0
            self.start(exchange)
        elif exchange.head is not None and exchange.head.framing is Framing.CLOSE:
            self._end(connection, Outcome.OK)
        else:
            self._end(connection, Outcome.EARLY_END if exchange.head else Outcome.LOST, detail)

    def _end(self, connection: Connection, outcome: Outcome, detail: str = "") -> None:
        exchange = connection.exchange
        connection.exchange = None
        self._drop(connection)
        if exchange is not None:
            exchange.finish(outcome, time.perf_counter_ns(), detail)
            self._finished(exchange)

    def _drop(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._selector.unregister(connection.sock)
        connection.sock.close()
