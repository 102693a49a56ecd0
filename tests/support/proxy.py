"""A TCP proxy for a broker or ZooKeeper, which loses, delays and repeats requests and cuts connections.

It relies on a four-byte length prefix and on a server answering the requests of a connection in order. Requests without
a response (Produce with acks=0) are not supported.
"""

import asyncio
import random
import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Self

from tests.support.ports import free_port

_LARGEST: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The probability of each fault for a request; `apis` restricts the faults to these API keys."""

    lose_request: float = 0.0
    """The connection is cut before the request reaches the broker."""
    lose_answer: float = 0.0
    """The broker gets the request, but the connection is cut before the answer."""
    tear: float = 0.0
    """The broker gets part of the request, then the connection is cut."""
    repeat: float = 0.0
    """The broker gets the request twice; the client gets one answer."""
    silence: float = 0.0
    """This request and later messages are dropped; the connection stays open."""
    delay: float = 0.0
    longest_delay_s: float = 0.0
    apis: frozenset[int] | None = None


NO_FAULTS: Final = Faults()


@dataclass(frozen=True, slots=True)
class Protocol:
    """How to read a message, given with its length prefix."""

    api_of: Callable[[bytes], int]
    """Returns the API key of a request."""
    answers: Callable[[bytes], bool] = lambda _: True
    """Returns True for an answer, False for a message that the server sends by itself."""


KAFKA: Final = Protocol(lambda frame: int.from_bytes(frame[4:6]))
_SETUP: Final = -100
"""Stands for the API key of the request that begins a session, which has no number."""
_WATCH_EVENT: Final = b"\xff\xff\xff\xff"


def _zookeeper_operation(frame: bytes) -> int:
    # A request begins with a number, which is 0 only at the beginning of a session, where it is the protocol's version.
    return _SETUP if frame[4:8] == bytes(4) else int.from_bytes(frame[8:12], signed=True)


ZOOKEEPER: Final = Protocol(_zookeeper_operation, lambda frame: frame[4:8] != _WATCH_EVENT)
ZOOKEEPER_WRITES: Final = frozenset({1, 2, 5, 14})
"""The operations create, delete, set and multi."""

_Fault = Literal["lose_request", "lose_answer", "tear", "repeat", "silence", "delay"]
_FAULTS: Final[tuple[_Fault, ...]] = ("lose_request", "lose_answer", "tear", "repeat", "silence", "delay")


class Proxy:
    """Forwards `address` to `target` (both HOST:PORT) in a background thread; a context manager.

    `address` is known before the proxy starts, so that the broker can advertise it.
    """

    def __init__(self, target: str, *, port: int | None = None, seed: int = 0, protocol: Protocol = KAFKA) -> None:
        self._target = target
        self.protocol = protocol
        self._port = port or free_port()
        self.address = f"127.0.0.1:{self._port}"
        self.faults = NO_FAULTS
        self.fault_counts: dict[_Fault, int] = dict.fromkeys(_FAULTS, 0)
        """Number of requests by fault."""
        self._chance = random.Random(seed)
        self._connections: dict[_Connection, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self, share: float = 1.0) -> None:
        """Cut `share` of the connections at once, even in the middle of a message."""

        async def cut() -> None:
            for connection in list(self._connections):
                if self._chance.random() < share:
                    connection.cut()

        asyncio.run_coroutine_threadsafe(cut(), self._loop).result(10)

    def draw(self, api_key: int) -> _Fault | None:
        """Draw the fault of the next request."""
        faults = self.faults
        if faults.apis is not None and api_key not in faults.apis:
            return None
        for name in _FAULTS:
            if self._chance.random() < getattr(faults, name):
                self.fault_counts[name] += 1
                return name
        return None

    def draw_prefix_size(self, size: int) -> int:
        return self._chance.randrange(size)

    def draw_delay_s(self) -> float:
        return self._chance.uniform(0, self.faults.longest_delay_s)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)

    async def _stop(self) -> None:
        self._server.close()
        tasks = list(self._connections.values())
        for connection in self._connections:
            connection.cut()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        try:
            broker, to_broker = await asyncio.open_connection(host, int(port))
        except OSError:
            to_client.transport.abort()
            return
        connection = _Connection(self, to_client, to_broker)
        task = asyncio.ensure_future(connection.run(client, broker))
        self._connections[connection] = task
        task.add_done_callback(lambda _: self._connections.pop(connection))


class _Connection:
    def __init__(self, proxy: Proxy, to_client: asyncio.StreamWriter, to_broker: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._to_client = to_client
        self._to_broker = to_broker
        self._awaited: deque[Literal["pass", "swallow", "cut"]] = deque()
        """The fate of the answers to the forwarded requests, in order."""
        self._is_silent = False

    async def run(self, client: asyncio.StreamReader, broker: asyncio.StreamReader) -> None:
        tasks = [asyncio.ensure_future(self._requests(client)), asyncio.ensure_future(self._answers(broker))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.cut()

    def cut(self) -> None:
        self._to_client.transport.abort()
        self._to_broker.transport.abort()

    async def _requests(self, client: asyncio.StreamReader) -> None:
        while True:
            frame = await _read_frame(client)
            if self._is_silent:
                continue
            match self._proxy.draw(self._proxy.protocol.api_of(frame)):
                case "lose_request":
                    return
                case "tear":
                    self._to_broker.write(frame[: self._proxy.draw_prefix_size(len(frame))])
                    await self._to_broker.drain()
                    return
                case "silence":
                    self._is_silent = True
                    continue
                case "lose_answer":
                    self._awaited.append("cut")
                case "repeat":
                    self._awaited += ["pass", "swallow"]
                    self._to_broker.write(frame)
                case "delay":
                    await asyncio.sleep(self._proxy.draw_delay_s())
                    self._awaited.append("pass")
                case None:
                    self._awaited.append("pass")
            self._to_broker.write(frame)
            await self._to_broker.drain()

    async def _answers(self, broker: asyncio.StreamReader) -> None:
        while True:
            frame = await _read_frame(broker)
            if not self._proxy.protocol.answers(frame):
                if not self._is_silent:
                    self._to_client.write(frame)
                continue
            match self._awaited.popleft():
                case "cut":
                    return
                case "pass" if not self._is_silent:
                    self._to_client.write(frame)
                    await self._to_client.drain()


async def _read_frame(stream: asyncio.StreamReader) -> bytes:
    """Read a message with its length prefix. Raises asyncio.IncompleteReadError or OSError if the stream ends."""
    head = await stream.readexactly(4)
    (size,) = struct.unpack(">i", head)
    assert 0 <= size <= _LARGEST, size
    return head + await stream.readexactly(size)
