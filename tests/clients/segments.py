"""A reader of the broker's segment files."""

import struct
from pathlib import Path

from tests.clients.drivers import CODECS

_BASE_OFFSET_AND_LENGTH = struct.Struct(">qi")
_ATTRIBUTES_AT = 21
_CODEC_BITS = 0x07
# codec numbers in batch attributes
_CODEC_NAMES = dict(enumerate(CODECS))


def stored_codecs(data: Path, topic: str) -> set[str]:
    """Return the names of the codecs of a topic's batches in any directory below `data`."""
    codecs = set()
    for segment in data.rglob(f"{topic}-*/*.log"):
        content = segment.read_bytes()
        position = 0
        while position < len(content):
            _, length = _BASE_OFFSET_AND_LENGTH.unpack_from(content, position)
            (attributes,) = struct.unpack_from(">h", content, position + _ATTRIBUTES_AT)
            codecs.add(_CODEC_NAMES[attributes & _CODEC_BITS])
            position += _BASE_OFFSET_AND_LENGTH.size + length
    return codecs
