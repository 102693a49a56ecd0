"""Parses the records of many batches into columns, for compaction, which must examine every record.

Layout: https://kafka.apache.org/documentation/#record
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.cleaner.record_sizes import RECORD_SIZES, equal_run
from headrace.types import Buffer
from headrace.wire.batch import BatchHeader
from headrace.wire.varint import get_varint

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Bytes = NDArray[np.uint8]

PADDING: Final = 16
"""Zero bytes after the bodies, so that reading a varint or a word needs no bounds check."""
_NULL: Final = 1
"""The varint -1."""
_WALK: Final = 64
"""Records to walk one by one before checking for a run of equally long records."""
_LONGEST_WALK: Final = 1024
_LONGEST_RUN: Final = 8192
_ROWS: Final = 65_536
"""Records per step, limited because intermediate results take about ten times the memory of the columns."""
_MAX_VARINT: Final = 10
_MAX_VARINT32: Final = 5


class RecordColumns(NamedTuple):
    """One row per record, in batch order; `counts` and `has_offsets` have one row per batch.

    `content` is the bodies, followed by `PADDING` zero bytes. `has_offsets` is False if the producer wrote offsets that
    exceed the batch's range or do not ascend. `deltas` are relative to the base offset. Sizes are in bytes; `key_sizes`
    is -1 without a key. `key_starts` are positions in `content`.
    """

    content: Bytes
    counts: Integers
    has_offsets: Flags
    sizes: Integers
    deltas: Integers
    key_starts: Integers
    key_sizes: Integers
    has_value: Flags


def columns_of(headers: Sequence[BatchHeader], bodies: Sequence[Buffer]) -> RecordColumns:
    """Parse the uncompressed `bodies` of non-empty batches.

    Raises KafkaError(corrupt_message) if a body does not match its header.
    """
    counts = np.array([header.record_count for header in headers], np.int64)
    if (counts <= 0).any():
        raise KafkaError(
            ErrorCode.corrupt_message, f"a batch header declares {counts.min()} records, but must declare at least 1"
        )
    joined = b"".join((*bodies, bytes(PADDING)))
    content = np.frombuffer(joined, np.uint8)
    starts = _starts(joined, headers, bodies)
    ends = np.append(starts[1:], len(joined) - PADDING)
    zigzags, key_starts, key_sizes = (np.empty_like(starts) for _ in range(3))
    has_value = np.empty(len(starts), np.bool_)
    for first in range(0, len(starts), _ROWS):
        rows = slice(first, first + _ROWS)
        position = _skip_varints(content, starts[rows]) + 1
        position = _skip_varints(content, position)
        zigzags[rows], position = _varints(content, position)
        sizes, position = _varints(content, position)
        sizes = np.where(sizes & 1, -1, sizes >> 1)
        key_ends = position + np.maximum(sizes, 0)
        if (key_ends >= ends[rows]).any():
            raise KafkaError(ErrorCode.corrupt_message, "a record's fields do not fit into its length")
        key_starts[rows], key_sizes[rows] = position, sizes
        has_value[rows] = content[key_ends] != _NULL
    return RecordColumns(
        content=content,
        counts=counts,
        has_offsets=_are_offsets(zigzags, counts, headers),
        sizes=ends - starts,
        deltas=zigzags >> 1,
        key_starts=key_starts,
        key_sizes=key_sizes,
        has_value=has_value,
    )


def _are_offsets(zigzags: Integers, counts: Integers, headers: Sequence[BatchHeader]) -> Flags:
    """Return True for every batch with valid offsets. An even zigzag is twice the delta; an odd one is negative."""
    last = np.cumsum(counts) - 1
    first = last + 1 - counts
    ascends = np.ones(len(zigzags), np.bool_)
    np.greater(zigzags[1:], zigzags[:-1], out=ascends[1:])
    ascends[first] = True
    ascends &= zigzags & 1 == 0
    highest = np.array([header.last_offset_delta for header in headers], np.int64)
    flags: Flags = np.logical_and.reduceat(ascends, first) & (zigzags[last] >> 1 <= highest)
    return flags


def _starts(content: bytes, headers: Sequence[BatchHeader], bodies: Sequence[Buffer]) -> Integers:
    """Return the start of every record. A record ends where the next one begins."""
    runs: list[Integers] = []
    walked: list[int] = []
    end = 0
    for header, body in zip(headers, bodies, strict=True):
        begin, end = end, end + len(body)
        try:
            position = _walk(content, begin, header.record_count, walked, runs)
        except IndexError:
            position = end + 1
        if position > end:
            raise KafkaError(ErrorCode.corrupt_message, "the last record extends past the end of its batch")
        if position < end:
            raise KafkaError(
                ErrorCode.corrupt_message, f"the batch contains more than the declared {header.record_count} records"
            )
    runs.append(np.array(walked, np.int64))
    return np.concatenate(runs)


def _walk(content: bytes, position: int, count: int, walked: list[int], runs: list[Integers]) -> int:
    """Append the starts of `count` records, from `position` on, to `walked` or `runs`. Return the end of the last one.

    This is the only loop over records, and takes longer than decoding all columns. It follows the length fields, and
    skips runs of equally long records. Raises IndexError at the end of `content`, and KafkaError(corrupt_message).
    """
    add = walked.append
    steps = _WALK
    while count > 0:
        before = len(walked)
        try:
            for _ in range(min(count, steps)):
                add(position)
                # adding None raises TypeError, which is cheaper than a test
                position += RECORD_SIZES[content[position]][content[position + 1]]  # type: ignore[operator]
        except TypeError:
            length, position = get_varint(content, position)
            if length < 0:
                raise KafkaError(ErrorCode.corrupt_message, "a record's length is negative") from None
            position += length
        count -= len(walked) - before
        if len(walked) >= _ROWS:
            runs.append(np.array(walked, np.int64))
            walked.clear()
        steps = min(2 * steps, _LONGEST_WALK)
        longest = _WALK
        while count >= _WALK and (size := RECORD_SIZES[content[position]][content[position + 1]]) is not None:
            run = equal_run(content, position, size, min(count, longest))
            if run < _WALK // 4:
                break
            runs.append(np.array(walked, np.int64))
            walked.clear()
            runs.append(np.arange(position, position + size * run, size, dtype=np.int64))
            position += size * run
            count -= run
            steps = _WALK
            longest = min(2 * longest, _LONGEST_RUN) if run == longest else _WALK
    return position


def _skip_varints(content: Bytes, at: Integers) -> Integers:
    """Return the ends of the varints `at` these positions. Raises KafkaError(corrupt_message)."""
    ends = at + 1
    more = np.flatnonzero(content[at] > 0x7F)
    for _ in range(_MAX_VARINT):
        if not more.size:
            return ends
        byte = content[ends[more]]
        ends[more] += 1
        more = more[byte > 0x7F]
    raise KafkaError(ErrorCode.corrupt_message, f"a 64-bit varint has more than {_MAX_VARINT} bytes")


def _varints(content: Bytes, at: Integers) -> tuple[Integers, Integers]:
    """Return the zigzags of the varints `at` these positions, and their ends.

    Raises KafkaError(corrupt_message) for a varint of more than 5 bytes.
    """
    byte = content[at]
    values = (byte & 0x7F).astype(np.int64)
    ends = at + 1
    more = np.flatnonzero(byte > 0x7F)
    for shift in range(7, 7 * _MAX_VARINT32, 7):
        if not more.size:
            return values, ends
        byte = content[ends[more]]
        values[more] |= (byte & 0x7F).astype(np.int64) << shift
        ends[more] += 1
        more = more[byte > 0x7F]
    if more.size:
        raise KafkaError(ErrorCode.corrupt_message, f"a 32-bit varint has more than {_MAX_VARINT32} bytes")
    return values, ends
