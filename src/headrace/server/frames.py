"""Where requests begin and end in what a client has sent, and which of them are answered together.

A frame is a request behind its size: https://kafka.apache.org/protocol#protocol_common
"""

import struct
from typing import Final

from headrace.storage.files.log_file import FileSlice
from headrace.wire.varint import unsigned_varint

Part = bytes | bytearray | memoryview | FileSlice
Parts = list[Part]
"""An answer, piece by piece."""

MAX_RUN: Final = 64
"""Produce requests of one client that are appended together."""
MAX_OTHER_FRAME: Final = 16 * 1024 * 1024
"""Bytes of any request but Produce: what has no records in it does not come near."""
MAX_HEADER_TAGS: Final = 100
"""Tagged fields of one request header."""
_SIZE = struct.Struct(">i")
_KEY = struct.Struct(">h")
SIZE_BYTES: Final = _SIZE.size
_KEY_BYTES: Final = 2
_KEY_VERSION = struct.Struct(">hh")


class InvalidRequestError(Exception):
    """The bytes are no request that can be answered; the connection ends and the reason is logged.

    `answers` are to requests before them, which are sent first.
    """

    def __init__(self, why: str, answers: Parts | None = None) -> None:
        super().__init__(why)
        self.answers = answers or []


def frame_end(view: memoryview, position: int, end: int, max_frame: int) -> int:
    """The end of the frame at `position`, of which the bytes before `end` are there: its size at least.

    Raises InvalidRequestError for a size that no request has.
    """
    size: int = _SIZE.unpack_from(view, position)[0]
    if not 0 <= size <= max_frame:
        raise InvalidRequestError(f"a request of {size} bytes; socket.request.max.bytes allows 0 to {max_frame}")
    if size > MAX_OTHER_FRAME:
        check_size(view[position + SIZE_BYTES : end], size)
    return position + SIZE_BYTES + size


def check_size(frame: memoryview, size: int) -> None:
    """Raise InvalidRequestError if a request of `size` bytes that begins with `frame` is too large for its kind."""
    if size > MAX_OTHER_FRAME and len(frame) >= _KEY_BYTES and (key := _KEY.unpack_from(frame)[0]):
        raise InvalidRequestError(
            f"a request of {size} bytes for API {key}; only those that produce may have more than {MAX_OTHER_FRAME}"
        )


def take_run(view: memoryview, position: int, stop: int, end: int, max_frame: int) -> tuple[list[memoryview], int]:
    """The request in the frame from `position` to `stop` with, if it is a Produce, those that follow before `end`.

    And where they end.
    """
    requests = [view[position + SIZE_BYTES : stop].toreadonly()]
    if _is_produce(view, position, stop):
        while len(requests) < MAX_RUN and _is_produce(view, stop, end):
            start = stop + SIZE_BYTES
            size = _SIZE.unpack_from(view, stop)[0]
            if not _KEY_BYTES <= size <= min(max_frame, end - start):
                break
            stop = start + size
            requests.append(view[start:stop].toreadonly())
    return requests, stop


def _is_produce(view: memoryview, position: int, end: int) -> bool:
    """Whether the frame at `position`, as far as it is there before `end`, asks for Produce: its API key is 0."""
    key_at = position + SIZE_BYTES
    return key_at + _KEY_BYTES <= end and not view[key_at] and not view[key_at + 1]


def named(frame: memoryview) -> tuple[int, int, int]:
    """API key, version and size of a request, for a line in the log."""
    key, version = _KEY_VERSION.unpack_from(frame) if len(frame) >= _KEY_VERSION.size else (-1, -1)
    return key, version, len(frame)


def skip_tags(frame: memoryview, position: int) -> int:
    """Position behind the tagged fields of a request header (KIP-482); none is defined yet."""
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
