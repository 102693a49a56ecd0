"""Encodes large replies in slices, and closes the connection if a reply gets too large."""

import struct
from typing import Final

from headrace.server.context import RequestContext
from headrace.server.frames import InvalidRequestError, Parts
from headrace.slices import Steps
from headrace.wire.apis import ApiKey, Schema
from headrace.wire.encoder import Fields
from headrace.wire.items import Items

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of a reply that is encoded in slices. Without a limit, a request of 100 KB that repeats an entry could
cause a reply of gigabytes. The metadata of 10,000 partitions takes less than a tenth."""
_PART_BYTES: Final = 256 * 1024
_FEW: Final = 64
"""Maximum number of items in a reply that is encoded in one go."""
_SIZE_CORRELATION: Final = struct.Struct(">ii")


def is_large(reply: Fields) -> bool:
    """Return True if encoding the reply may take longer than a slice."""
    items = 0
    for value in reply.values():
        kind = type(value)
        if kind is list or kind is tuple:
            items += len(value)
            if items > _FEW:
                return True
            for item in value:
                if type(item) is dict:
                    for inner in item.values():
                        kind = type(inner)
                        if kind is list or kind is tuple:
                            items += len(inner)
                        elif kind is Items:
                            return True
        elif kind is Items:
            return True
    return items > _FEW


def encode_in_steps(context: RequestContext, api_schema: Schema, reply: Fields) -> Steps[Parts]:
    """Encode the reply. Raises InvalidRequestError if it exceeds `MAX_ANSWER_BYTES`."""
    out = bytearray(8)
    if api_schema.has_flexible_response_header:
        out.append(0)
    parts: list[bytes] = []
    size = 0
    for _ in api_schema.encode_in_steps(out, reply):
        if len(out) > _PART_BYTES:
            # a growing buffer would be copied repeatedly
            parts.append(bytes(out))
            size += len(out)
            out.clear()
            if size > MAX_ANSWER_BYTES:
                raise InvalidRequestError(
                    f"the reply to {ApiKey(context.api_key).name} v{context.api_version} would exceed"
                    f" {MAX_ANSWER_BYTES >> 20} MiB: split the request"
                )
        yield
    parts.append(bytes(out))
    size += len(out)
    head = bytearray(parts[0])
    _SIZE_CORRELATION.pack_into(head, 0, size - 4, context.correlation_id)
    return [head, *parts[1:]]
