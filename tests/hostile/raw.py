"""Requests encoded by hand, so that they can be invalid.

Independent of the code under test: encoded with `struct` from the protocol page and, for batches,
https://kafka.apache.org/documentation/#recordbatch.
"""

import itertools
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from crc32c import crc32c

CLIENT_ID: Final = "tests-hostile"
PATIENCE_S: Final = 60.0

PRODUCE, FETCH, METADATA, OFFSET_FETCH, FIND_COORDINATOR, API_VERSIONS, CREATE_TOPICS = 0, 1, 3, 9, 10, 18, 19
LIST_OFFSETS = 2

_LOW: Final = 1 << 13
"""Number of offset deltas that share the high bytes of their varint."""
_correlation_ids = itertools.count(1)


class BrokerClosedError(Exception):
    """The broker closed the connection."""


def string(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">h", -1)
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def array(*items: bytes) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)


def request(api_key: int, version: int, body: bytes, *, client_id: str | None = CLIENT_ID) -> bytes:
    """Return a request with a non-flexible header, without its length prefix."""
    return struct.pack(">hhi", api_key, version, next(_correlation_ids)) + string(client_id) + body


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def varint(value: int) -> bytes:
    """Encode a zigzag varint, as in records."""
    return unsigned_varint((value << 1) ^ (value >> 63))


def unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def many_records(count: int, tails: Sequence[bytes], *, timestamp_delta: int = 0) -> bytes:
    """Return `count` records whose contents after the offset delta alternate between `tails`."""
    front = b"\0" + varint(timestamp_delta)
    contents = [front + varint(index) + tails[index % len(tails)] for index in range(min(count, _LOW))]
    pieces = [varint(len(content)) + content for content in contents]
    # Larger deltas have two low bytes, which repeat, and then the high ones: this is 20 times faster than `varint`.
    lows = [bytes((index * 2 & 0x7F | 0x80, index >> 6 | 0x80)) for index in range(_LOW)]
    for high in range(1, (count - 1) // _LOW + 1):
        ends = [unsigned_varint(high) + tail for tail in tails]
        fronts = [varint(len(front) + 2 + len(end)) + front for end in ends]
        numbers = range(min(_LOW, count - high * _LOW))
        pieces += [fronts[index % len(tails)] + lows[index] + ends[index % len(tails)] for index in numbers]
    return b"".join(pieces)


def record(offset_delta: int, value: bytes) -> bytes:
    content = b"\x00" + varint(0) + varint(offset_delta) + varint(-1) + varint(len(value)) + value + varint(0)
    return varint(len(content)) + content


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A record batch of which any field may be wrong; `None` means the correct value."""

    values: tuple[bytes, ...] = (b"first", b"second", b"third")
    body: bytes | None = None
    base_offset: int = 0
    length: int | None = None
    magic: int = 2
    crc: int | None = None
    attributes: int = 0
    last_offset_delta: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    count: int | None = None

    def encode(self) -> bytes:
        body = self.body
        if body is None:
            body = b"".join(record(delta, value) for delta, value in enumerate(self.values))
        now_ms = int(time.time() * 1000)
        last = len(self.values) - 1 if self.last_offset_delta is None else self.last_offset_delta
        checked = (
            struct.pack(">hiqq", self.attributes, last, now_ms, now_ms)
            + struct.pack(">qhi", self.producer_id, self.producer_epoch, self.base_sequence)
            + struct.pack(">i", len(self.values) if self.count is None else self.count)
            + body
        )
        crc = crc32c(checked) if self.crc is None else self.crc
        length = 9 + len(checked) if self.length is None else self.length
        return struct.pack(">qiibI", self.base_offset, length, -1, self.magic, crc) + checked


def produce_body(topic: str, records: bytes, *, partition: int = 0, acks: int = -1) -> bytes:
    """Produce v3 to v8."""
    data = struct.pack(">ii", partition, len(records)) + records
    return string(None) + struct.pack(">hi", acks, 10_000) + array(string(topic) + array(data))


def fetch_body(topic: str, offset: int, *, max_bytes: int) -> bytes:
    """Fetch v4, without a wait."""
    return struct.pack(">iiiib", -1, 0, 1, max_bytes, 0) + array(
        string(topic) + array(struct.pack(">iqi", 0, offset, max_bytes))
    )


def create_topic_body(topic: str, partitions: int = 1) -> bytes:
    """CreateTopics v2 to v4."""
    return array(string(topic) + struct.pack(">ih", partitions, 1) + array() + array()) + struct.pack(">ib", 10_000, 0)


class RawConnection:
    """A connection to a broker."""

    def __init__(self, host: str, port: int, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.local_port: int = self.socket.getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, content: bytes) -> None:
        self.socket.sendall(content)

    def call(self, api_key: int, version: int, body: bytes) -> bytes:
        """Send a request and return its answer after the correlation id."""
        content = request(api_key, version, body)
        self.send(framed(content))
        answer = self.receive()
        assert answer[:4] == content[4:8], "wrong correlation id"
        return answer[4:]

    def receive(self) -> bytes:
        """Return the next answer without its length prefix. Raises BrokerClosedError."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def is_closed_by_broker(self) -> bool:
        """Wait, and return True if the connection ends, False if an answer arrives."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            try:
                part = self.socket.recv(size - len(received))
            except ConnectionError:
                part = b""
            if not part:
                raise BrokerClosedError(f"after {len(received)} of {size} bytes")
            received += part
        return bytes(received)

    def create_topic(self, topic: str) -> int:
        """Return the error code."""
        answer = self.call(CREATE_TOPICS, 2, create_topic_body(topic))
        (name_size,) = struct.unpack_from(">h", answer, 8)
        (error,) = struct.unpack_from(">h", answer, 10 + name_size)
        return int(error)

    def auto_create_topic(self, topic: str) -> int:
        """Request Metadata v4 for a topic and return its error code."""
        answer = self.call(METADATA, 4, array(string(topic)) + b"\x01")
        position = 4
        (brokers,) = struct.unpack_from(">i", answer, position)
        position += 4
        for _ in range(brokers):
            position = _skip_string(answer, position + 4) + 4
            position = _skip_string(answer, position)
        position = _skip_string(answer, position) + 4  # cluster id, controller
        (topics, error) = struct.unpack_from(">ih", answer, position)
        assert topics == 1
        return int(error)

    def produce(self, topic: str, records: bytes, *, acks: int = -1) -> tuple[int, int]:
        """Produce v8 to partition 0 and return the error code and base offset."""
        answer = self.call(PRODUCE, 8, produce_body(topic, records, acks=acks))
        position = _skip_string(answer, 4) + 4
        _, error, base_offset = struct.unpack_from(">ihq", answer, position)
        return int(error), int(base_offset)

    def fetch(self, topic: str, offset: int, *, max_bytes: int = 1 << 20) -> tuple[int, bytes]:
        """Fetch v4 from partition 0 and return the error code and records."""
        answer = self.call(FETCH, 4, fetch_body(topic, offset, max_bytes=max_bytes))
        position = _skip_string(answer, 8) + 4
        _, error, _, _, aborted = struct.unpack_from(">ihqqi", answer, position)
        position += 26 + 16 * max(0, aborted)
        (size,) = struct.unpack_from(">i", answer, position)
        return int(error), answer[position + 4 : position + 4 + size]


def _skip_string(content: bytes, position: int) -> int:
    (size,) = struct.unpack_from(">h", content, position)
    return position + 2 + max(0, int(size))
