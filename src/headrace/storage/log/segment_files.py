"""Names of the files in a partition's directory: twenty digits of the base offset and a suffix."""

from pathlib import Path
from typing import Final

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

DELETED_SUFFIX: Final = ".deleted"
"""Waits for its removal."""
CLEANED_SUFFIX: Final = ".cleaned"
"""Being written by compaction; worthless after a crash."""
SWAP_SUFFIX: Final = ".swap"
"""Written by compaction in full; takes the place of the segments it was made from."""

DAMAGED_SUFFIX: Final = ".damaged"
"""A copy of a file before what was damaged in it was cut off: for people, the broker never reads it."""

_DIGITS: Final = 20
_MAX_OFFSET: Final = (1 << 63) - 1


def segment_file(directory: Path, base_offset: int, suffix: str) -> Path:
    return directory / f"{base_offset:020d}{suffix}"


def offset_of(name: str) -> int | None:
    """The offset that a file is named by; None for any other file."""
    digits = name[:_DIGITS]
    if len(digits) == _DIGITS and digits.isascii() and digits.isdigit() and name[_DIGITS : _DIGITS + 1] == ".":
        offset = int(digits)
        return offset if offset <= _MAX_OFFSET else None
    return None


def suffix_of(name: str) -> str:
    """From the last dot on."""
    return name[name.rfind(".") :]
