"""Whether bytes are records, as many as were counted, each with a key, a value and headers that fill its length.

Nothing is decoded. A batch like one before is compared with that (`record_templates`). Records in a row that are alike
are checked together, by columns (`record_shapes`, `record_heads`) or with tables (`record_layouts`); others are read
number by number. See docs/decisions/071.
Layout: https://kafka.apache.org/documentation/#record
"""

from typing import Final

from headrace.errors import ErrorCode, KafkaError
from headrace.wire.record_heads import alike_in_heads
from headrace.wire.record_layouts import alike_in_layout
from headrace.wire.record_shapes import learn_shape, of_one_shape
from headrace.wire.record_sizes import MIN_RECORD, RECORD_SIZES, equal_run
from headrace.wire.record_templates import WORTH_A_TEMPLATE, Run, Templates
from headrace.wire.records import get_varint

_FIRST_REACH: Final = 64
"""Records compared by columns at first; four times as many whenever all of them were alike."""
_WORTH_IT: Final = 8
"""With fewer records than this in a comparison, single ones are as fast."""
_FIRST_STEPS: Final = 64
"""Records read one by one after a comparison that was not worth it; twice as many after each further one."""
_MOST_STEPS: Final = 256
_SHORT_DELTAS: Final = 6
"""Bytes that timestamp delta and offset delta may have together without one of them having too many."""

_templates = Templates()


def check_records(data: bytes, position: int, count: int) -> int:
    """Position behind the `count` records that begin at `position`.

    Raises KafkaError(invalid_record) where there are not as many, or the fields of one do not fill its length.
    """
    if count < WORTH_A_TEMPLATE:
        return _follow(data, position, count, [], keyed=False)
    end = _templates.end_of(data, position, count)
    if end:
        return end
    runs: list[Run] = []
    end = _follow(data, position, count, runs, keyed=False)
    if runs:
        _templates.learn(data, position, count, runs)
    return end


def all_have_keys(body: bytes, count: int) -> bool:
    """Whether `body` holds `count` sound records with keys and nothing else."""
    try:
        return _follow(body, 0, count, [], keyed=True) == len(body)
    except KafkaError:
        return False


def _follow(data: bytes, position: int, count: int, runs: list[Run], *, keyed: bool) -> int:
    """`check_records`, which with `keyed` also raises KafkaError for a record without a key.

    Adds to `runs` those that were checked as one.
    """
    left = count
    reach = _FIRST_REACH
    steps = _FIRST_STEPS
    worth_learning = _WORTH_IT
    by_heads = True
    try:
        while left:
            if left == 1:
                return _read(data, position, 1, keyed)
            # equal records get one byte longer with the 64th, where the varint of their offset delta does
            run = min(reach, left)
            shape = of_one_shape(data, position, run, keyed=keyed)
            if shape is not None:
                runs.append((position, run, shape))
                position += run * shape.size
                left -= run
                reach *= 4
                steps = _FIRST_STEPS
                continue
            reach = _FIRST_REACH
            run = _equal_sizes(data, position, left)
            if run >= _WORTH_IT:
                shape = of_one_shape(data, position, run, keyed=keyed)
                if shape is not None:
                    runs.append((position, run, shape))
                    position += run * shape.size
                    left -= run
                    continue
            begin = position
            position = _read(data, position, 1, keyed)
            left -= 1
            if run >= worth_learning:
                learn_shape(data, begin)
                # A shape costs as much as some forty records, and a batch may have been made of ever new ones.
                worth_learning = min(2 * worth_learning, _FIRST_REACH)
                continue
            done = min(left, steps)
            alike = 0
            if by_heads:
                alike, position = alike_in_heads(data, position, done, keyed=keyed)
                by_heads = alike > 0
            if not alike:
                alike, position = alike_in_layout(data, position, done, keyed=keyed)
            if alike < _WORTH_IT:
                position = _read(data, position, done - alike, keyed)
            else:
                done = alike
            left -= done
            steps = min(2 * steps, _MOST_STEPS)
    except IndexError:
        raise _invalid("a record ends outside its batch") from None
    except KafkaError as error:
        raise _invalid(str(error)) from None
    return position


def _equal_sizes(data: bytes, position: int, left: int) -> int:
    """How many records in a row are as long as the one at `position`, by what they say."""
    if left < _WORTH_IT:
        return 0
    size = RECORD_SIZES[data[position]][data[position + 1]]
    return 0 if size is None else equal_run(data, position, size, min(left, _FIRST_REACH))


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_record, why)


def _read(data: bytes, position: int, count: int, keyed: bool) -> int:
    """Read `count` records field by field; the position behind them. Raises KafkaError, IndexError."""
    for _ in range(count):
        first = data[position]
        size = RECORD_SIZES[first][data[position + 1]]
        if size is None:
            end, at = _long_record(data, position)
        else:
            end = position + size
            at = position + (1 if first < 0x80 else 2)
        # behind the attributes
        at = deltas_at = at + 1
        while data[at] > 0x7F:
            at += 1
        at += 1
        while data[at] > 0x7F:
            at += 1
        at += 1
        if at - deltas_at > _SHORT_DELTAS:
            _check_deltas(data, deltas_at)
        # A key of up to 63 bytes, a value of up to 8 KB and no headers are what most have; else numbers are read whole.
        key = data[at]
        if key < 0x80:
            at += 1 if key & 1 else 1 + (key >> 1)
        else:
            at, key = _behind(data, at)
        if keyed and key & 1:
            raise _invalid("a record has no key")
        value = data[at]
        if value < 0x80:
            at += 1 if value & 1 else 1 + (value >> 1)
        elif data[at + 1] < 0x80 and not value & 1:
            at += 2 + ((value & 0x7F) >> 1) + (data[at + 1] << 6)
        else:
            at, _ = _behind(data, at)
        at = _behind_headers(data, at, end) if data[at] else at + 1
        if at != end:
            raise _invalid(f"the fields of a record have {at - position} bytes where its length says {end - position}")
        position = end
    if position > len(data):
        raise _invalid("a record ends outside its batch")
    return position


def _long_record(data: bytes, position: int) -> tuple[int, int]:
    """The position behind a record that RECORD_SIZES does not tell, and behind its length."""
    length, at = get_varint(data, position)
    if at + length - position < MIN_RECORD:
        raise _invalid("a record is shorter than a record can be")
    return at + length, at


def _check_deltas(data: bytes, position: int) -> None:
    """Raises KafkaError where timestamp delta and offset delta, at `position`, have more bytes than they may."""
    _, position = get_varint(data, position, 64)
    get_varint(data, position)


def _behind(data: bytes, position: int) -> tuple[int, int]:
    """The position behind the bytes whose length is at `position`, and 1 if they are null, else 0."""
    size, position = get_varint(data, position)
    return (position, 1) if size < 0 else (position + size, 0)


def _behind_headers(data: bytes, at: int, end: int) -> int:
    """The position behind the headers whose count is at `at`. Raises KafkaError, IndexError."""
    headers = data[at]
    if headers < 0x80 and not headers & 1:
        headers >>= 1
        at += 1
    else:
        headers, at = get_varint(data, at)
    if not 0 <= headers <= end - at:
        raise _invalid(f"a record claims {headers} headers")
    for _ in range(headers):
        name = data[at]
        if name < 0x80 and not name & 1:
            at += 1 + (name >> 1)
        else:
            at, null = _behind(data, at)
            if null:
                raise _invalid("a header has no name")
        value = data[at]
        if value < 0x80:
            at += 1 if value & 1 else 1 + (value >> 1)
        else:
            at, _ = _behind(data, at)
    return at
