"""A link to another broker: one connection, ordered requests, a timeout, and exponential back-off for reconnects.

As in Kafka, brokers use one such connection per purpose: a follower's fetches, requests to the controller, and the
controller's commands to a broker. Most requests between brokers have a fixed version and do not need ApiVersions.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Final, TypeAlias, TypeVar

from kio._kio_native import entity_reader

from headrace import __version__
from headrace.client.connection import Connection, ConnectionFailedError, ReplyBuffer
from headrace.types import Buffer
from headrace.wire.apis import ApiKey, VersionRange, request_encoder, response_reader

DEFAULT_TIMEOUT_S: Final = 30.0
"""Kafka's `controller.socket.timeout.ms` and `replica.socket.timeout.ms`."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
"""Kafka's `reconnect.backoff.ms` and `reconnect.backoff.max.ms`."""
_API_VERSIONS: Final = 3
"""The version of ApiVersions, which every broker since Kafka 2.4 supports."""
_HEADER: Final = Struct(">ihhih")
_SIZE: Final = Struct(">i")
_CORRELATION_ID: Final = Struct(">i")
_CLOSED: Final = "the connection was closed on this side"

Message = TypeVar("Message")


class LinkError(Exception):
    """No valid reply to a request. The other broker may have executed it."""


Answered: TypeAlias = Callable[[memoryview | LinkError], None]
"""Called once with the body of a reply, valid until the next request, or with the error."""


class Link:
    """Sends requests to one broker. `endpoint` returns the broker's current host and port; None if unknown.

    With `api_versions`, a new connection begins with ApiVersions, and requests of unsupported versions fail.
    """

    def __init__(
        self,
        endpoint: Callable[[], tuple[str, int] | None],
        *,
        client_id: str,
        loop: asyncio.AbstractEventLoop,
        api_versions: bool,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._endpoint = endpoint
        self._client_id = client_id.encode()
        self._loop = loop
        self._asks_versions = api_versions
        self._timeout_s = timeout_s
        self._in_order = asyncio.Lock()
        self._buffer = ReplyBuffer()
        self._connection: Connection | None = None
        self._connected_to: tuple[str, int] | None = None
        self._versions: Mapping[int, VersionRange] = {}
        self._correlation_id = 0
        self._pause_s = 0.0
        self._may_connect_at = 0.0
        self._is_closed = False
        self._asked: Answered | None = None
        """Receives the reply to the request that `ask` has sent."""
        self._asked_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        """Ends a request of `ask` that gets no reply. Not set for each request, because most replies arrive soon."""

    async def call(self, message: Any, version: int, reply_type: type[Message]) -> Message:
        """Send a message (an object of kio or `wire.controls`) and return the reply. Raises LinkError.

        A call waits for earlier calls. If it is cancelled while its request is in flight, the connection is closed.
        """
        assert message.__version__ == version == reply_type.__version__, f"{message} has another version"  # type: ignore[attr-defined]  # of kio's classes
        body = _encoded(message)
        flexible = message.__header_schema__.__version__ == 2
        flexible_reply = reply_type.__header_schema__.__version__ == 1  # type: ignore[attr-defined]  # as above
        async with self._in_order:
            reply = await self._exchange(message.__api_key__, version, body, flexible=flexible)
            # The reader needs read-only memory.
            answer: Message = _read(_reader(reply_type), bytes(reply), 5 if flexible_reply else 4)
            return answer

    async def exchange(self, api_key: int, version: int, body: Buffer) -> memoryview:
        """Send the body of a flexible request, and return the body of its reply, valid until the next request.

        Raises LinkError. Nothing else may use the link at the same time.
        """
        async with self._in_order:
            reply = await self._exchange(api_key, version, body, flexible=True)
            return reply[_after_tags(reply) :]

    @property
    def is_ready(self) -> bool:
        """True if `ask` may be called: the connection to the current address is open, and not in use."""
        connection = self._connection
        return (
            connection is not None
            and connection.is_open
            and self._asked is None
            and not self._in_order.locked()
            and self._endpoint() == self._connected_to
        )

    def ask(self, api_key: int, version: int, body: Buffer, answered: Answered) -> None:
        """Like `exchange`, but without a task: `answered` is called when the reply arrives, and may call `ask` again.

        Call it only if the link `is_ready`. Until the reply arrives, nothing else may use the link.
        """
        connection = self._connection
        assert connection is not None
        self._asked, self._asked_at = answered, self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._check_time)
        connection.send(self._frame(api_key, version, body, flexible=True), self._reply_to_asked)

    def _reply_to_asked(self, reply: memoryview | ConnectionFailedError) -> None:
        answered, self._asked = self._asked, None
        if answered is None:
            return
        if isinstance(reply, ConnectionFailedError):
            answered(self._failed(str(reply)))
            return
        try:
            self._check_answer(reply)
            body = reply[_after_tags(reply) :]
        except (ConnectionFailedError, LinkError) as error:
            answered(self._failed(str(error)))
        else:
            answered(body)

    def _check_time(self) -> None:
        """Fail the request of `ask` if its reply is overdue."""
        self._timer = None
        if self._asked is None:
            return
        wait_s = self._asked_at + self._timeout_s - self._loop.time()
        if wait_s > 0:
            self._timer = self._loop.call_later(wait_s, self._check_time)
        else:
            answered, self._asked = self._asked, None
            answered(self._failed(f"no answer within {self._timeout_s:g} s"))

    def close(self) -> None:
        """Close the connection for good. The call in progress and all later calls raise LinkError."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connection is not None:
            self._connection.close(_CLOSED)

    async def _exchange(self, api_key: int, version: int, body: Buffer, *, flexible: bool) -> memoryview:
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._connected()
                known = self._versions.get(api_key)
                if self._asks_versions and (known is None or not known.lowest <= version <= known.highest):
                    raise LinkError(f"{self._peer} does not support version {version} of {ApiKey(api_key).name}")
                reply = await self._ask(connection, api_key, version, body, flexible=flexible)
        except TimeoutError:
            raise self._failed(f"no answer within {self._timeout_s:g} s") from None
        except (ConnectionFailedError, OSError) as error:
            raise self._failed(str(error)) from error
        except asyncio.CancelledError:
            self._drop("the caller was cancelled")
            raise
        self._pause_s = 0.0
        return reply

    async def _connected(self) -> Connection:
        """Return an open connection to the current address. Opening one waits for the back-off after a failure.

        Raises LinkError, ConnectionFailedError or OSError.
        """
        connection = self._connection
        address = self._endpoint()
        if connection is not None and connection.is_open and address == self._connected_to:
            return connection
        self._drop("the broker has another address")
        wait_s = self._may_connect_at - self._loop.time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
            address = self._endpoint()
        if self._is_closed:
            raise LinkError(_CLOSED)
        if address is None:
            raise LinkError("the broker's address is unknown")
        self._connected_to = address
        _, connection = await self._loop.create_connection(lambda: Connection(self._loop, self._buffer), *address)
        self._connection = connection
        try:
            if self._is_closed:
                raise LinkError(_CLOSED)
            if self._asks_versions:
                self._versions = await self._fetch_versions(connection)
        except LinkError:
            self._drop("the connection cannot be used")
            raise
        return connection

    async def _fetch_versions(self, connection: Connection) -> Mapping[int, VersionRange]:
        body = bytearray()
        software = {"client_software_name": "headrace", "client_software_version": __version__}
        request_encoder(ApiKey.API_VERSIONS, _API_VERSIONS)(body, software)
        reply = await self._ask(connection, ApiKey.API_VERSIONS, _API_VERSIONS, body, flexible=True)
        answer = _read(response_reader(ApiKey.API_VERSIONS, _API_VERSIONS), bytes(reply), 4)
        return {
            supported.api_key: VersionRange(supported.min_version, supported.max_version)
            for supported in answer.api_keys
        }

    async def _ask(
        self, connection: Connection, api_key: int, version: int, body: Buffer, *, flexible: bool
    ) -> memoryview:
        """Send a request, and return the reply with its header. Raises ConnectionFailedError."""
        reply = await connection.exchange(self._frame(api_key, version, body, flexible=flexible))
        self._check_answer(reply)
        return reply

    def _frame(self, api_key: int, version: int, body: Buffer, *, flexible: bool) -> bytes:
        """Return the next request with its header."""
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        size = _HEADER.size - _SIZE.size + len(self._client_id) + flexible + len(body)
        head = _HEADER.pack(size, api_key, version, self._correlation_id, len(self._client_id))
        return b"".join((head, self._client_id, b"\0" if flexible else b"", body))

    def _check_answer(self, reply: memoryview) -> None:
        """Raise ConnectionFailedError unless the reply belongs to the latest request."""
        if len(reply) < _CORRELATION_ID.size or _CORRELATION_ID.unpack_from(reply)[0] != self._correlation_id:
            raise ConnectionFailedError("the reply belongs to another request")

    @property
    def _peer(self) -> str:
        return "no address" if self._connected_to is None else f"{self._connected_to[0]}:{self._connected_to[1]}"

    def _failed(self, reason: str) -> LinkError:
        """Close the connection, extend the back-off, and return the error to raise."""
        self._drop(reason)
        self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        # Random, so that the followers of a restarted broker do not all reconnect at the same time.
        self._may_connect_at = self._loop.time() + self._pause_s * random.uniform(0.8, 1.2)
        return LinkError(f"{self._peer}: {reason}")

    def _drop(self, reason: str) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(reason)


_READERS: Final[dict[type, Callable[[bytes, int], tuple[Any, int]]]] = {}


def _reader(reply_type: Any) -> Callable[[bytes, int], tuple[Any, int]]:
    """Return kio's compiled reader of a class, compiled once."""
    reader = _READERS.get(reply_type)
    if reader is None:
        reader = _READERS[reply_type] = entity_reader(reply_type)
    return reader


def _encoded(message: Any) -> bytes:
    # Imported here, because a single broker does not need them. kio caches the compiled writers.
    from io import BytesIO

    from kio.serial import entity_writer

    out = BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def _read(read: Callable[[bytes, int], tuple[Any, int]], data: bytes, start: int) -> Any:
    """Decode a reply. Raises LinkError if it is malformed."""
    try:
        answer, size = read(data, start)
    except Exception as error:  # kio's readers raise errors of many types
        raise LinkError(f"the reply cannot be decoded: {error!r}") from error
    if start + size != len(data):
        raise LinkError(f"the reply is {len(data) - start - size} bytes too long")
    return answer


def _after_tags(reply: memoryview) -> int:
    """Return the position after the header of a flexible reply.

    Raises LinkError if the header is incomplete or has tagged fields.
    """
    if len(reply) <= _CORRELATION_ID.size:
        raise LinkError("the reply ends within its header")
    if reply[_CORRELATION_ID.size] != 0:
        raise LinkError("the reply's header has tagged fields, which Kafka does not send")
    return _CORRELATION_ID.size + 1
