"""Splits received bytes into frames, and groups Produce requests that are handled together.

A frame is a size followed by a request: https://kafka.apache.org/protocol#protocol_common
"""

import struct
from typing import Final

from headrace.storage.files.log_file import FileSlice
from headrace.wire.varint import unsigned_varint

Part = bytes | bytearray | memoryview | FileSlice
Parts = list[Part]
"""The parts of a reply."""

MAX_RUN: Final = 64
"""Maximum number of Produce requests of one client that are appended together."""
MAX_OTHER_FRAME: Final = 16 * 1024 * 1024
"""Maximum bytes of a request other than Produce; without records, real requests are far smaller."""
MAX_HEADER_TAGS: Final = 100
"""Maximum number of tagged fields in a request header."""
_SIZE = struct.Struct(">i")
_KEY = struct.Struct(">h")
SIZE_BYTES: Final = _SIZE.size
_KEY_BYTES: Final = 2
_KEY_VERSION = struct.Struct(">hh")


class InvalidRequestError(Exception):
    """A request cannot be answered: the connection is closed and the reason logged.

    `answers` are the replies to earlier requests, which are sent first.
    """

    def __init__(self, why: str, answers: Parts | None = None) -> None:
        super().__init__(why)
        self.answers = answers or []


def frame_end(view: memoryview, position: int, end: int, max_frame: int) -> int:
    """Return the end of the frame at `position`. Received bytes end at `end`, and include at least the size field.

    Raises InvalidRequestError for an invalid size.
    """
    size: int = _SIZE.unpack_from(view, position)[0]
    if not 0 <= size <= max_frame:
        raise InvalidRequestError(f"a request announces {size} bytes; socket.request.max.bytes allows 0 to {max_frame}")
    if size > MAX_OTHER_FRAME:
        check_size(view[position + SIZE_BYTES : end], size)
    return position + SIZE_BYTES + size


def check_size(frame: memoryview, size: int) -> None:
    """Raise InvalidRequestError if a request of `size` bytes that begins with `frame` is too large for its API."""
    if size > MAX_OTHER_FRAME and len(frame) >= _KEY_BYTES and (key := _KEY.unpack_from(frame)[0]):
        raise InvalidRequestError(
            f"a request with API key {key} has {size} bytes; only Produce requests may have more than {MAX_OTHER_FRAME}"
        )


def take_run(view: memoryview, position: int, stop: int, end: int, max_frame: int) -> tuple[list[memoryview], int]:
    """Return the requests to handle together, and the position after the last one.

    The first is in the frame from `position` to `stop`. If it is a Produce request, complete Produce requests that
    follow before `end` are included, up to `MAX_RUN` in total.
    """
    requests = [view[position + SIZE_BYTES : stop].toreadonly()]
    if is_produce(view, position, stop):
        while len(requests) < MAX_RUN and is_produce(view, stop, end):
            start = stop + SIZE_BYTES
            size = _SIZE.unpack_from(view, stop)[0]
            if not _KEY_BYTES <= size <= min(max_frame, end - start):
                break
            stop = start + size
            requests.append(view[start:stop].toreadonly())
    return requests, stop


def is_produce(view: memoryview, position: int, end: int) -> bool:
    """Return True if the frame at `position`, received up to `end`, has the API key 0."""
    key_at = position + SIZE_BYTES
    return key_at + _KEY_BYTES <= end and not view[key_at] and not view[key_at + 1]


def identify(frame: memoryview) -> tuple[int, int, int]:
    """Return the API key, the version and the size in bytes of a request; key and version are -1 if it is too short."""
    key, version = _KEY_VERSION.unpack_from(frame) if len(frame) >= _KEY_VERSION.size else (-1, -1)
    return key, version, len(frame)


def skip_tags(frame: memoryview, position: int) -> int:
    """Return the position after the tagged fields of a request header (KIP-482); Kafka defines none."""
    try:
        count, position = unsigned_varint(frame, position)
        if count > MAX_HEADER_TAGS:
            raise InvalidRequestError(
                f"the request's header has {count} tagged fields; at most {MAX_HEADER_TAGS} are allowed"
            )
        for _ in range(count):
            _, position = unsigned_varint(frame, position)
            size, position = unsigned_varint(frame, position)
            position += size
    except IndexError:
        raise InvalidRequestError("the request ends inside its header") from None
    except ValueError as error:
        raise InvalidRequestError(f"the request's header cannot be read: {error}") from None
    if position > len(frame):
        raise InvalidRequestError("the request ends inside its header")
    return position
