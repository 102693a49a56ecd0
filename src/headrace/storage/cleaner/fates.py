"""What becomes of a record in compaction, as both kinds of offset map say it."""

from collections.abc import Sequence
from typing import Final, NamedTuple

BYTES_PER_OFFSET: Final = 5
MANY_BATCHES: Final = 8192
"""Batches that wait to be looked at, at most: each takes 700 bytes beside its records."""

LIVE: Final = 0
"""The record is the newest of its key and has a value; or there is no such record."""
SUPERSEDED: Final = 1
"""A newer record has the same key, or the record has no key."""
TOMBSTONE: Final = 2
"""The record is the newest of its key and has no value."""


class Fates(NamedTuple):
    """Of the records in a batch, in their order: what becomes of each, and its size in bytes."""

    fates: bytearray
    sizes: Sequence[int]
