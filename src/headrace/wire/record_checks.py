"""Validates the records of a batch in one pass, counts missing keys and finds the range of timestamps.

Compiled with mypyc if a C compiler exists; uncompiled, the same code is about fifty times slower. So this module has
only the loop, uses only integers and bytes, and returns codes; `headrace.wire.validation` turns them into errors.
Layout: https://kafka.apache.org/documentation/#record
"""

from typing import Final

from mypy_extensions import i64

MIN_RECORD: Final = 7
"""The smallest record in bytes: without key, value and headers."""
MAX_PREFIX: Final = 26
"""Maximum bytes of the numbers before a key; all later numbers of a record have up to five."""
_MAX_NUMBER: Final = 5
_SHORT: Final = 0x4000
"""Encoded numbers below this have one or two bytes."""

# `walk` returns these for invalid records, and otherwise a position.
OUTSIDE: Final = -1
TOO_SHORT: Final = -2
LONG_NUMBER: Final = -3
HEADER_COUNT: Final = -4
NAMELESS_HEADER: Final = -5
NOT_FILLED: Final = -6

NO_TIMESTAMP: Final = -1
MAX_INT64: Final = 0x7FFF_FFFF_FFFF_FFFF
_QUARTER: Final = 0x4000_0000_0000_0000
_EIGHTH: Final = 0x2000_0000_0000_0000
"""An eighth of the range of 64 bits, as `_QUARTER` is a quarter."""

# The next part of a record.
_HEAD: Final = 0
_VALUE: Final = 1
_HEADERS: Final = 2
_NAME: Final = 3
_CONTENT: Final = 4


class RecordWalk:
    """Validates `count` records in one or several pieces of bytes, and gathers facts about them.

    Timestamps are absolute, in ms, and wrap at 64 bits as in Kafka. The attributes are read-only.
    """

    def __init__(self, count: i64, base_timestamp: i64, newer_than: i64, from_delta: i64) -> None:
        """Find the largest timestamp over `newer_than` (-1 for any) of records with offset deltas from `from_delta`."""
        self.left: i64 = count
        """Records that are not complete yet."""
        self.keyless: i64 = 0
        """Records without a key."""
        self.smallest: i64 = MAX_INT64
        """The smallest timestamp except -1 (none); MAX_INT64 if no record has one."""
        self.largest: i64 = newer_than
        """The largest timestamp; `newer_than` if none is larger."""
        self.delta_of_largest: i64 = -1
        """The offset delta of the first record with the largest timestamp."""
        self.timestamp: i64 = NO_TIMESTAMP
        """The timestamp of the current record."""
        self.misplaced: i64 = -1
        """The place of a record whose offset delta differs from its place; -1 if none does."""
        self._count: i64 = count
        self._base: i64 = base_timestamp
        self._from_delta: i64 = from_delta
        self._part: i64 = _HEAD
        self._rest: i64 = 0
        self._headers: i64 = 0

    def walk(  # noqa: C901  (the compiler makes fast code only of a single loop over all fields)
        self, data: bytes, begin: i64, steps: i64, is_last: bool, finds_one: bool
    ) -> i64:
        """Continue at `begin` of `data` for up to `steps` records and headers; return a position or an error code.

        Stops earlier after the last record; where a number may extend into the next piece (unless `is_last`); with
        `finds_one`, after the first record whose timestamp is larger than `newer_than`. To continue, call it with the
        bytes from the returned position on, which may be after the end of `data`.
        """
        size: i64 = len(data)
        at: i64 = begin
        left: i64 = self.left
        part: i64 = self._part
        end: i64 = begin + self._rest
        headers: i64 = self._headers
        base: i64 = self._base
        keyless: i64 = self.keyless
        smallest: i64 = self.smallest
        largest: i64 = self.largest
        timestamp: i64 = self.timestamp
        length: i64 = 0
        start: i64 = 0
        delta: i64 = 0
        offset: i64 = 0
        byte: i64 = 0
        more: i64 = 0
        value: i64 = 0
        # the first two bytes of the last common record, the bytes of its length field, and its size
        first: i64 = 256
        second: i64 = 256
        prefix: i64 = 0
        whole: i64 = 0
        newest_delta: i64 = self.delta_of_largest
        count: i64 = self._count
        misplaced: i64 = self.misplaced
        from_delta: i64 = self._from_delta
        # the encoded timestamp deltas that can be added to the base without wrapping: those below this
        short: i64 = _SHORT if -_EIGHTH < base < _EIGHTH else 0
        found: bool = False
        is_common: bool = False
        if end > size and is_last:
            return OUTSIDE
        while left > 0 and steps > 0 and not found:
            if part == _HEAD:
                if not is_last and size - at < MAX_PREFIX:
                    break
                start = at
                is_common = False
                if size - at >= MAX_PREFIX:
                    # Nearly all records have numbers of one or two bytes. They need fewer tests, because those before
                    # the key are inside `data`. A third byte makes a number too large; `at` then returns to `start`.
                    byte = data[at]
                    more = data[at + 1]
                    if byte != first or more != second:
                        first = byte
                        second = more
                        prefix = 1
                        if byte > 0x7F:
                            byte = (byte & 0x7F) | (more << 7)
                            prefix = 2
                        whole = 0
                        if byte < _SHORT:
                            whole = prefix + ((byte >> 1) ^ -(byte & 1))
                    # if the length is that of the previous record, the processor need not wait for the decoded one
                    end = start + whole
                    at += prefix + 1
                    delta = data[at]
                    at += 1
                    if delta > 0x7F:
                        more = data[at]
                        delta = (delta & 0x7F) | (more << 7)
                        at += 1
                    offset = data[at]
                    at += 1
                    if offset > 0x7F:
                        more = data[at]
                        offset = (offset & 0x7F) | (more << 7)
                        at += 1
                    length = data[at]
                    at += 1
                    if length > 0x7F:
                        more = data[at]
                        length = (length & 0x7F) | (more << 7)
                        at += 1
                    if whole >= MIN_RECORD and end <= size and delta < short and (offset | length) < _SHORT:
                        if not length & 1:
                            at += length >> 1
                        if at + 1 < end:
                            value = data[at]
                            at += 1
                            if value > 0x7F:
                                more = data[at]
                                value = (value & 0x7F) | (more << 7)
                                at += 1
                            is_common = value < _SHORT
                if is_common:
                    timestamp = base + ((delta >> 1) ^ -(delta & 1))
                    offset = (offset >> 1) ^ -(offset & 1)
                    if not value & 1:
                        at += value >> 1
                    keyless += length & 1
                    part = _HEADERS
                else:
                    length, at = _number(data, start, size)
                    if at < 0:
                        return at
                    end = at + length
                    if end - start < MIN_RECORD:
                        return TOO_SHORT
                    if end > size and is_last:
                        return OUTSIDE
                    # skip the attributes
                    delta, at = _long_number(data, at + 1, end)
                    if at < 0:
                        return at
                    timestamp = _sum(base, delta)
                    offset, at = _number(data, at, end)
                    if at < 0:
                        return at
                    length, at = _number(data, at, end)
                    if at < 0:
                        return at
                    if length < 0:
                        keyless += 1
                    else:
                        at += length
                    part = _VALUE
                if offset + left != count:
                    misplaced = count - left
                if timestamp < smallest and timestamp != NO_TIMESTAMP:
                    smallest = timestamp
                if timestamp > largest and offset >= from_delta:
                    largest = timestamp
                    newest_delta = offset
                    found = finds_one
            if part == _VALUE:
                if end > size and size - at < _MAX_NUMBER:
                    break
                length, at = _number(data, at, end)
                if at < 0:
                    return at
                if length > 0:
                    at += length
                part = _HEADERS
            if part == _HEADERS:
                if end > size and size - at < _MAX_NUMBER:
                    break
                if at >= end:
                    return OUTSIDE
                byte = data[at]
                if byte == 0:
                    at += 1
                else:
                    headers, at = _number(data, at, end)
                    if at < 0:
                        return at
                    if headers < 0 or headers > end - at:
                        return HEADER_COUNT
                part = _NAME
            while headers > 0:
                if part == _NAME:
                    if steps <= 0 or (end > size and size - at < _MAX_NUMBER):
                        break
                    byte = 0x80
                    if at < end:
                        byte = data[at]
                    if byte < 0x80:
                        length = (byte >> 1) ^ -(byte & 1)
                        at += 1
                    else:
                        length, at = _number(data, at, end)
                        if at < 0:
                            return at
                    if length < 0:
                        return NAMELESS_HEADER
                    at += length
                    part = _CONTENT
                if end > size and size - at < _MAX_NUMBER:
                    break
                byte = 0x80
                if at < end:
                    byte = data[at]
                if byte < 0x80:
                    length = (byte >> 1) ^ -(byte & 1)
                    at += 1
                else:
                    length, at = _number(data, at, end)
                    if at < 0:
                        return at
                if length > 0:
                    at += length
                part = _NAME
                headers -= 1
                steps -= 1
            if headers > 0:
                if steps > 0:
                    break
                continue
            if at != end:
                return NOT_FILLED
            at = end
            left -= 1
            steps -= 1
            part = _HEAD
        if part != _HEAD:
            if at > end:
                return OUTSIDE
            self._rest = end - at
        else:
            self._rest = 0
        self.left = left
        self._part = part
        self._headers = headers
        self.keyless = keyless
        self.smallest = smallest
        self.largest = largest
        self.delta_of_largest = newest_delta
        self.timestamp = timestamp
        self.misplaced = misplaced
        return at


def _number(data: bytes, at: i64, end: i64) -> tuple[i64, i64]:
    """Return the 32-bit zigzag varint at `at`, and the position after it or an error code.

    Excess bits are dropped, as in Kafka.
    """
    if at >= end:
        return 0, OUTSIDE
    value: i64 = data[at]
    at += 1
    if value > 0x7F:
        value &= 0x7F
        shift: i64 = 7
        while True:
            if at >= end:
                return 0, OUTSIDE
            byte: i64 = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                return 0, LONG_NUMBER
        value &= 0xFFFFFFFF
    return (value >> 1) ^ -(value & 1), at


def _long_number(data: bytes, at: i64, end: i64) -> tuple[i64, i64]:
    """Like `_number`, for 64 bits."""
    if at >= end:
        return 0, OUTSIDE
    value: i64 = data[at]
    at += 1
    if value < 0x80:
        return (value >> 1) ^ -(value & 1), at
    value &= 0x7F
    shift: i64 = 7
    while shift < 63:
        if at >= end:
            return 0, OUTSIDE
        byte: i64 = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    if at >= end:
        return 0, OUTSIDE
    byte = data[at]
    if byte > 0x7F:
        return 0, LONG_NUMBER
    half: i64 = value >> 1
    if byte & 1:  # the 64th bit; those above are dropped
        half += 0x4000_0000_0000_0000
    return half ^ -(value & 1), at + 1


def _sum(base: i64, delta: i64) -> i64:
    """Add with wrapping at 64 bits."""
    if -_EIGHTH < base < _EIGHTH and -_EIGHTH < delta < _EIGHTH:
        return base + delta
    # avoid overflow in all steps: it is undefined in C, and does not wrap in Python
    if delta >= 0 and base >= 0 and (base - _QUARTER) + (delta - _QUARTER) >= 0:
        return (base - _QUARTER - _QUARTER) + (delta - _QUARTER - _QUARTER)
    if delta < 0 and base < 0 and (base + _QUARTER) + (delta + _QUARTER) < 0:
        return (base + _QUARTER + _QUARTER) + (delta + _QUARTER + _QUARTER)
    return base + delta


COMPILED: Final = __file__.endswith((".so", ".pyd"))
"""True if this is the compiled module."""
