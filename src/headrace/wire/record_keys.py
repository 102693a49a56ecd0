"""Whether all records of a batch have keys, as those of a compacted topic must, without decoding them.

Layout: https://kafka.apache.org/documentation/#record
"""

from typing import Final

from headrace.types import Buffer
from headrace.wire.record_sizes import RECORD_SIZES

_LONGEST_VARLONG: Final = 10
_LONGEST_VARINT: Final = 5


def all_have_keys(body: Buffer, count: int) -> bool:
    """Whether `body` holds `count` sound records with keys and nothing else.

    False also for records over 8 KB and fields that are encoded in a way that no client does: `records_of`, which takes
    three times as long, then tells what they are.
    """
    position = 0
    try:
        for _ in range(count):
            first = body[position]
            size = RECORD_SIZES[first][body[position + 1]]
            if size is None:
                return False
            end = position + size
            # behind the length and the attributes
            timestamp_at = at = position + (2 if first < 0x80 else 3)
            while body[at] > 0x7F:
                at += 1
            at += 1
            offset_at = at
            while body[at] > 0x7F:
                at += 1
            at += 1
            if offset_at - timestamp_at > _LONGEST_VARLONG or at - offset_at > _LONGEST_VARINT:
                return False
            key = body[at]
            if key > 0x7F:
                at += 1
                key = key & 0x7F | body[at] << 7
            at += 1 + (key >> 1)
            value = body[at]
            if value > 0x7F:
                at += 1
                value = value & 0x7F | body[at] << 7
            at += 1 if value & 1 else 1 + (value >> 1)
            # A length of over two bytes reaches beyond the record. Most have no headers, and end with a zero.
            if key & 1 or body[at] or at + 1 != end:
                return False
            position = end
    except IndexError:
        return False
    return position == len(body)
