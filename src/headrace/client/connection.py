"""A TCP connection to a broker. It carries one request at a time, and receives replies into one reused buffer."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias, cast

from headrace.types import Buffer

_SIZE_BYTES: Final = 4
_FIRST_BUFFER: Final = 64 * 1024
_MAX_FRAME: Final = 2**31 - 1


class ConnectionFailedError(Exception):
    """The connection was closed, or the peer violated the protocol."""


Answered: TypeAlias = Callable[[memoryview | ConnectionFailedError], None]
"""Called once with the reply, without its size field, or with an error if no valid reply arrives.

The memory of the reply is valid until the next request.
"""


class ReplyBuffer:
    """A buffer for replies. It never shrinks, because replies to a follower are of similar size."""

    __slots__ = ("content", "view")

    def __init__(self) -> None:
        self.content = bytearray(_FIRST_BUFFER)
        self.view = memoryview(self.content)

    def grow(self, size: int, filled: int) -> None:
        """Grow to at least `size` bytes, and keep the first `filled` bytes."""
        # Up to a power of two, because each reply may be a little larger than the one before.
        content = bytearray(1 << (size - 1).bit_length())
        content[:filled] = self.view[:filled]
        self.content = content
        self.view = memoryview(content)


class Connection(asyncio.BufferedProtocol):
    """The protocol of a connection. Only one request may be in flight at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, buffer: ReplyBuffer) -> None:
        self._loop = loop
        self._buffer = buffer
        self._transport: asyncio.Transport | None = None
        self._answered: Answered | None = None
        """Receives the reply to the request in flight."""
        self._filled = 0
        self._needed = _SIZE_BYTES
        self._scrap = bytearray(1)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, frame: Buffer) -> memoryview:
        """Send a frame, and return the reply without its size field. The memory is valid until the next call.

        Raises ConnectionFailedError. A caller that stops waiting must close the connection.
        """
        reply: asyncio.Future[memoryview] = self._loop.create_future()

        def answered(result: memoryview | ConnectionFailedError) -> None:
            if reply.done():
                return
            if isinstance(result, ConnectionFailedError):
                reply.set_exception(result)
            else:
                reply.set_result(result)

        self.send(frame, answered)
        return await reply

    def send(self, frame: Buffer, answered: Answered) -> None:
        """Send a frame. `answered` is called with the reply when it arrives, and may send the next frame.

        Raises ConnectionFailedError.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionFailedError("the connection is closed")
        self._filled, self._needed = 0, _SIZE_BYTES
        self._answered = answered
        transport.write(frame)

    def close(self, reason: str) -> None:
        """Close at once. A request in flight fails with `reason`."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        self._fail(reason)

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not instances of asyncio's classes
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> Buffer:  # noqa: ARG002  asyncio passes it
        # Unrequested bytes must not overwrite the last reply, which may still be in use.
        return self._scrap if self._answered is None else self._buffer.view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        answered = self._answered
        if answered is None:
            self.close("the peer sent a reply without a request")
            return
        self._filled += nbytes
        if self._filled < self._needed:
            return
        if self._needed == _SIZE_BYTES:
            size = int.from_bytes(self._buffer.view[:_SIZE_BYTES], "big")
            if size > _MAX_FRAME:
                self.close("the peer sent a reply of negative size")
                return
            self._needed = _SIZE_BYTES + size
            if self._needed > len(self._buffer.view):
                self._buffer.grow(self._needed, self._filled)
            if self._filled < self._needed:
                return
        if self._filled > self._needed:
            self.close("the peer sent more than one reply")
            return
        self._answered = None
        answered(self._buffer.view[_SIZE_BYTES : self._needed])

    def eof_received(self) -> None:
        """Return None, so that the transport closes itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail("the peer closed the connection" if exc is None else f"the connection failed: {exc}")

    def _fail(self, reason: str) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(ConnectionFailedError(reason))
