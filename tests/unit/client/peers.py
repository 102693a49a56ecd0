"""A broker in memory, as the other end of a link."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from headrace.client.connection import Connection

Answer = Callable[[bytes], bytes | None]
"""Returns the reply to a request, both without size; None for none."""


class Peer:
    """An event loop for a `Link`, whose connections are answered by `answer`."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self.connections: list[_Transport] = []
        self.addresses: list[tuple[str, int]] = []
        self.refuses = False
        self.piece_size = 1 << 20
        """Bytes that arrive at a time."""

    async def asked(self) -> None:
        """Wait for the first request."""
        while not self.requests:  # noqa: ASYNC110  a request sets no event
            await asyncio.sleep(0)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return cast(asyncio.AbstractEventLoop, self)

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, callback)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    async def create_connection(
        self, factory: Callable[[], Connection], host: str, port: int
    ) -> tuple["_Transport", Connection]:
        self.addresses.append((host, port))
        await asyncio.sleep(0)
        if self.refuses:
            raise ConnectionRefusedError("refused")
        connection = factory()
        transport = _Transport(self, connection)
        self.connections.append(transport)
        connection.connection_made(transport)
        return transport, connection


class _Transport(asyncio.Transport):
    def __init__(self, peer: Peer, connection: Connection) -> None:
        super().__init__()
        self._peer = peer
        self._connection = connection
        self._is_closing = False

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        request = bytes(data)
        assert int.from_bytes(request[:4], "big") == len(request) - 4
        self._peer.requests.append(request[4:])
        answer = self._peer.answer(request[4:])
        if answer is not None:
            asyncio.get_running_loop().call_soon(self.deliver, len(answer).to_bytes(4, "big") + answer)

    def deliver(self, data: bytes) -> None:
        """Send these bytes to the link."""
        while data and not self._is_closing:
            target = memoryview(self._connection.get_buffer(-1))
            piece = data[: min(len(target), self._peer.piece_size)]
            target[: len(piece)] = piece
            data = data[len(piece) :]
            self._connection.buffer_updated(len(piece))

    def abort(self) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)
