"""Send requests of any version over a socket, and decode the answers to plain, comparable values."""

import datetime as dt
import select
import socket
import struct
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Self

from headrace.wire.apis import ApiKey, request_encoder, response_reader, schema


class WireClient:
    """A connection to a broker; a context manager."""

    def __init__(self, bootstrap: str, client_id: str = "wire", *, timeout_s: float = 30.0) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._client_id = client_id.encode()
        self._correlation_id = 0

    def ask(self, api_key: ApiKey, version: int, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the answer."""
        self.send(api_key, version, message)
        return self.receive(api_key, version)

    def send(self, api_key: ApiKey, version: int, message: dict[str, Any]) -> None:
        self._correlation_id += 1
        body = bytearray(
            struct.pack(">hhih", api_key, version, self._correlation_id, len(self._client_id)) + self._client_id
        )
        if schema(api_key, version).has_flexible_request_header:
            body.append(0)
        request_encoder(api_key, version)(body, message)
        self._socket.sendall(struct.pack(">i", len(body)) + body)

    def has_answer(self) -> bool:
        """Return True if the beginning of an answer has arrived."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def receive(self, api_key: ApiKey, version: int) -> dict[str, Any]:
        """Return the next answer. Raises ConnectionError if the broker closes the connection."""
        (size,) = struct.unpack(">i", self._read(4))
        data = self._read(size)
        start = 5 if schema(api_key, version).has_flexible_response_header else 4
        answer, read = response_reader(api_key, version)(data, start)
        assert start + read == size, "trailing bytes"
        message: dict[str, Any] = plain(answer)
        return message

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self._socket.recv(size - len(data))
            if not chunk:
                raise ConnectionError("the broker closed the connection")
            data += chunk
        return bytes(data)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def plain(value: Any) -> Any:
    """Convert a decoded entity to dicts, lists and scalars, with times in ms."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, dt.timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, dt.datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, Enum):
        return value.name
    return value
