"""Listening sockets, their connections, and the limits and timers of all connections."""

import asyncio
import errno
import logging
import resource
import socket
from collections import Counter
from typing import Final

from headrace.config import BrokerConfig, ConfigError, Listener
from headrace.config.listeners import AddressInUseError
from headrace.server.connection import Connection
from headrace.server.context import ClientInfo, Dispatch
from headrace.server.loop.busy_poll import BusyPoll
from headrace.server.loop.hang_ups import HangUps
from headrace.server.loop.loop_watch import LoopWatch
from headrace.server.loop.turns import Turns
from headrace.server.loop.urgent import UrgentReads
from headrace.server.request_memory import RequestMemory
from headrace.server.sending import UnsentAnswers

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 5.0
DEFAULT_REQUEST_MEMORY: Final = 256 * 1024 * 1024
"""Bytes for incomplete requests if `queued.max.request.bytes` sets no limit."""
HUNG_UP_SECONDS: Final = 5.0
"""Time that a request may take after its client has hung up: scripts close their sending side, then read the reply."""
_ACCEPTS_PER_TURN: Final = 16
_BACKLOG: Final = "socket.listen.backlog.size"
_RECEIVE_BUFFER: Final = "socket.receive.buffer.bytes"
_ACCEPT_PAUSE_SECONDS: Final = 0.5
_SPARE_DESCRIPTORS: Final = 64
"""Descriptors reserved for logs, metadata and late imports."""
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Server:
    """Accepts clients on every listener and keeps their connections."""

    def __init__(self, config: BrokerConfig, dispatch: Dispatch, loop: asyncio.AbstractEventLoop) -> None:
        self._config = config
        self._dispatch = dispatch
        self._loop = loop
        limit = config.queued_max_request_bytes
        self._memory = RequestMemory(limit if limit > 0 else DEFAULT_REQUEST_MEMORY)
        self._busy_poll = BusyPoll(loop.call_soon, config.headrace_busy_poll_us)
        self.turns = Turns(loop.call_soon)
        self.watch = LoopWatch(loop)
        self._hang_ups = HangUps(loop)
        self._urgent = UrgentReads(loop)
        self._unsent = UnsentAnswers()
        self._sockets: list[tuple[socket.socket, str]] = []
        self._connections: set[Connection] = set()
        self._per_host: Counter[str] = Counter()
        self._sweep: asyncio.TimerHandle | None = None
        self._turned_away = 0

    def bind(self) -> list[Listener]:
        """Bind all `listeners`, and return them with their actual port numbers.

        Raises ConfigError if the broker cannot listen on an address, for example because it is in use.
        """
        for listener in self._config.parsed_listeners:
            self._sockets.append((_bind(listener, self._backlog()), listener.name))
        return [
            Listener(name, listener.host or "0.0.0.0", sock.getsockname()[1])
            for (sock, name), listener in zip(self._sockets, self._config.parsed_listeners, strict=True)
        ]

    def start(self) -> None:
        """Start to accept connections."""
        for sock, listener in self._sockets:
            self._loop.add_reader(sock.fileno(), self._accept, sock, listener)
        self._sweep = self._loop.call_later(SWEEP_SECONDS, self._check_connections)
        self.watch.start()

    def _backlog(self) -> int:
        # Kafka's default of 50 overflows when many clients connect at once, and they retry only after a second
        return self._config.socket_listen_backlog_size if self._config.is_set(_BACKLOG) else socket.SOMAXCONN

    def close(self) -> None:
        """Stop listening and close all connections."""
        if self._sweep is not None:
            self._sweep.cancel()
        for sock, _ in self._sockets:
            self._loop.remove_reader(sock.fileno())
            sock.close()
        self._sockets.clear()
        for connection in tuple(self._connections):
            connection.close(None)
        self._hang_ups.close()
        self._urgent.close()
        self.watch.stop()

    def _accept(self, listening: socket.socket, listener: str) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    raise
                log.error(
                    "Cannot accept connections on %s: %s (%d are open; raise `ulimit -n`)",
                    listener,
                    error.strerror,
                    len(self._connections),
                )
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(_ACCEPT_PAUSE_SECONDS, self._accept_again, listening, listener)
                return
            self._open(sock, address[0], address[1], listener)

    def _accept_again(self, listening: socket.socket, listener: str) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening.fileno(), self._accept, listening, listener)

    def _open(self, sock: socket.socket, host: str, port: int, listener: str) -> None:
        if len(self._connections) >= self._config.max_connections:
            self._turn_away(sock, host, f"{self._config.max_connections} connections are open (max.connections)")
            return
        if self._per_host[host] >= self._config.max_connections_per_ip:
            limit = self._config.max_connections_per_ip
            self._turn_away(sock, host, f"{limit} connections from this address are open (max.connections.per.ip)")
            return
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if sock.fileno() >= allowed - min(_SPARE_DESCRIPTORS, allowed // 8) and allowed != resource.RLIM_INFINITY:
            self._turn_away(
                sock, host, f"`ulimit -n` allows {allowed} open files, and the rest are reserved for logs: raise it"
            )
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._size_buffers(sock)
        local = sock.getsockname()
        client = ClientInfo(listener=listener, host=host, port=port, local_address=(local[0], local[1]))
        connection = Connection(
            sock,
            client,
            loop=self._loop,
            dispatch=self._dispatch,
            memory=self._memory,
            busy_poll=self._busy_poll,
            turns=self.turns,
            urgent=self._urgent,
            watch=self.watch,
            hang_ups=self._hang_ups,
            unsent=self._unsent,
            max_frame=self._config.socket_request_max_bytes,
            on_closed=self._closed,
        )
        self._connections.add(connection)
        self._per_host[host] += 1
        connection.start()

    def _size_buffers(self, sock: socket.socket) -> None:
        send, receive = self._config.socket_send_buffer_bytes, self._config.socket_receive_buffer_bytes
        if send > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send)
        # unless configured, the system's automatic size is better than Kafka's 100 KiB
        if receive > 0 and self._config.is_set(_RECEIVE_BUFFER):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)

    def _turn_away(self, sock: socket.socket, host: str, why: str) -> None:
        sock.close()
        self._turned_away += 1
        if self._turned_away & (self._turned_away - 1) == 0:  # log the 1st, 2nd, 4th, 8th, …
            log.warning("Refused a connection from %s: %s (%d refused so far)", host, why, self._turned_away)

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        host = connection.client.host
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]

    def _check_connections(self) -> None:
        now = self._loop.time()
        max_idle = self._config.connections_max_idle_ms / 1000
        for connection in tuple(self._connections):
            # As in Kafka, a connection counts as idle even while its request waits.
            is_idle = 0 <= max_idle < now - connection.last_active_at
            hung_up_at = connection.hung_up_at
            if is_idle or (hung_up_at is not None and connection.is_waiting and now - hung_up_at > HUNG_UP_SECONDS):
                connection.leave()
            else:
                connection.check_patience(now)
        self._sweep = self._loop.call_later(SWEEP_SECONDS, self._check_connections)


def _bind(listener: Listener, backlog: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
        sock = socket.create_server((listener.host, listener.port), family=family, backlog=backlog)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            option = "--listen or listeners"
            raise AddressInUseError("listeners", listener.host, listener.port, option) from error
        raise ConfigError(
            "listeners", str(listener), f"cannot listen on this address: {error.strerror or error}"
        ) from error
    sock.setblocking(False)
    return sock
