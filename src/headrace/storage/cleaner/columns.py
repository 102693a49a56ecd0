"""The records of many batches at once, as columns: for compaction, which has to look at every record.

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
"""Zero bytes behind the bodies: a varint or a word that begins in them can be read without looking where they end."""
_NULL: Final = 1
"""The varint -1."""
_WALK: Final = 64
"""Records that are looked at one by one before it is tried whether those behind them are all of one size."""
_LONGEST_WALK: Final = 1024
_LONGEST_RUN: Final = 8192
_ROWS: Final = 65_536
"""Records of which the fields are found at once: what that takes on the way is some ten times what it leaves behind."""
_MAX_VARINT: Final = 10
_MAX_VARINT32: Final = 5


class RecordColumns(NamedTuple):
    """One row a record, in the order of the batches.

    `content` has the bodies back to back, and `PADDING`. `counts` are the records of each batch, `has_offsets` whether
    they ascend within those of the batch: a producer may lie. `deltas` are the distances from the batch's base offset.
    Sizes in bytes; `key_sizes` is -1 where there is no key. `key_starts` are positions in `content`.
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
    """The records in `bodies`, the uncompressed ones of batches that have some.

    Raises KafkaError(corrupt_message) where a body does not hold what its header says.
    """
    counts = np.array([header.record_count for header in headers], np.int64)
    if (counts <= 0).any():
        raise KafkaError(ErrorCode.corrupt_message, f"a batch counts {counts.min()} records")
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
    """Of each batch. A distance is half its zigzag; an odd one is negative."""
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
    """Where each record begins; it ends where the next one does, as the bodies do."""
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
            raise KafkaError(ErrorCode.corrupt_message, "the last record goes beyond its batch")
        if position < end:
            raise KafkaError(
                ErrorCode.corrupt_message, f"the batch holds more than the {header.record_count} records it counts"
            )
    runs.append(np.array(walked, np.int64))
    return np.concatenate(runs)


def _walk(content: bytes, position: int, count: int, walked: list[int], runs: list[Integers]) -> int:
    """Note where `count` records from `position` on begin; where the last one ends. Raises IndexError, KafkaError.

    This is the only loop over records: it costs more than all the columns. It goes from length to length, and leaps
    over records of one size.
    """
    add = walked.append
    steps = _WALK
    while count > 0:
        before = len(walked)
        try:
            for _ in range(min(count, steps)):
                add(position)
                # None cannot be added, and costs nothing where there is none
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
    """The positions behind the varints that are `at` these positions. Raises KafkaError(corrupt_message)."""
    behind = at + 1
    more = np.flatnonzero(content[at] > 0x7F)
    for _ in range(_MAX_VARINT):
        if not more.size:
            return behind
        byte = content[behind[more]]
        behind[more] += 1
        more = more[byte > 0x7F]
    raise KafkaError(ErrorCode.corrupt_message, f"a varint of 64 bits has over {_MAX_VARINT} bytes")


def _varints(content: Bytes, at: Integers) -> tuple[Integers, Integers]:
    """The zigzags of the varints `at` these positions, and the positions behind them.

    Raises KafkaError(corrupt_message) for one of more than 32 bits.
    """
    byte = content[at]
    values = (byte & 0x7F).astype(np.int64)
    behind = at + 1
    more = np.flatnonzero(byte > 0x7F)
    for shift in range(7, 7 * _MAX_VARINT32, 7):
        if not more.size:
            return values, behind
        byte = content[behind[more]]
        values[more] |= (byte & 0x7F).astype(np.int64) << shift
        behind[more] += 1
        more = more[byte > 0x7F]
    if more.size:
        raise KafkaError(ErrorCode.corrupt_message, f"a varint of 32 bits has over {_MAX_VARINT32} bytes")
    return values, behind
