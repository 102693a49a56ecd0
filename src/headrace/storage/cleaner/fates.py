"""The fates of records in compaction, for both implementations of the offset map."""

from collections.abc import Sequence
from typing import Final, NamedTuple

BYTES_PER_OFFSET: Final = 5
MANY_BATCHES: Final = 8192
"""Maximum number of pending batches. Each takes 700 bytes in addition to its records."""

LIVE: Final = 0
"""The record is the newest with its key and has a value. Offsets without a record also have this fate."""
SUPERSEDED: Final = 1
"""A newer record has the same key, or the record has no key."""
TOMBSTONE: Final = 2
"""The record is the newest with its key and has no value."""


class Fates(NamedTuple):
    """The fates of a batch's records in order, and their sizes in bytes."""

    fates: bytearray
    sizes: Sequence[int]
