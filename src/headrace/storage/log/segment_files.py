"""Names of the files in a partition's directory: the base offset, zero-padded to twenty digits, and a suffix."""

from pathlib import Path
from typing import Final

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

DELETED_SUFFIX: Final = ".deleted"
"""To be removed."""
CLEANED_SUFFIX: Final = ".cleaned"
"""Unfinished output of compaction; useless after a crash."""
SWAP_SUFFIX: Final = ".swap"
"""Complete output of compaction; replaces the segments it was made from."""

DAMAGED_SUFFIX: Final = ".damaged"
"""Records that recovery removed from the log, for the administrator; the broker never reads them."""

_DIGITS: Final = 20
MAX_OFFSET: Final = (1 << 63) - 1


def segment_file(directory: Path, base_offset: int, suffix: str) -> Path:
    return directory / f"{base_offset:020d}{suffix}"


def offset_of(name: str) -> int | None:
    """Return the base offset in a file name; None for other names."""
    digits = name[:_DIGITS]
    if len(digits) == _DIGITS and digits.isascii() and digits.isdigit() and name[_DIGITS : _DIGITS + 1] == ".":
        offset = int(digits)
        return offset if offset <= MAX_OFFSET else None
    return None


def suffix_of(name: str) -> str:
    return name[name.rfind(".") :]
