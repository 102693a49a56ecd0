"""The walk accepts the same records as Kafka's DefaultRecord.readFrom, compiled or not, whole or in pieces."""

import importlib.util
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import ErrorCode, KafkaError
from headrace.wire import record_checks, validation
from headrace.wire.batch import HEADER_SIZE, parse_header
from headrace.wire.record_checks import MAX_INT64, NO_TIMESTAMP, RecordWalk
from headrace.wire.records import RecordData, build_batch, records_of
from headrace.wire.validation import each_record, walk_in_pieces
from headrace.wire.varint import varint
from tests.support.examples import examples

TIME = 1_700_000_000_000
# Hypothesis draws long texts byte by byte
longer = st.one_of(st.integers(50, 80), st.integers(8100, 8300)).map(lambda size: random.Random(size).randbytes(size))
texts = st.binary(max_size=6) | longer
# cheaper than st.randoms, which records every number
dices = st.builds(random.Random, st.integers(0, 2**32))
anything = st.builds(
    RecordData,
    st.none() | texts,
    st.none() | texts,
    st.integers(TIME - 100_000, TIME + 100_000) | st.integers(-(2**40), 2**60),
    st.sampled_from(((), (), (("name", b"value"),), (("a", None), ("b" * 70, bytes(200))))),
)


def source_module() -> ModuleType:
    """Load the interpreted walk as a second module."""
    spec = importlib.util.spec_from_file_location(
        "record_checks_source", Path(validation.__file__).with_name("record_checks.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SOURCE = source_module()
TWINS = {"compiled": record_checks, "source": SOURCE}


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `validation` use the compiled or the interpreted walk."""
    module = TWINS[request.param]
    if module.COMPILED is not (request.param == "compiled"):
        pytest.skip("no compiled walk: run `make setup` on a machine with a C compiler")
    monkeypatch.setattr(validation, "RecordWalk", module.RecordWalk)
    monkeypatch.setattr(validation, "SLICE", 50)


def new_walk(count: int, base_timestamp: int, newer_than: int, from_delta: int) -> RecordWalk:
    walk: RecordWalk = vars(validation)["RecordWalk"](count, base_timestamp, newer_than, from_delta)
    return walk


class InvalidRecordsError(Exception):
    """The records are invalid."""


class Seen(NamedTuple):
    keyless: int = 0
    smallest: int = MAX_INT64
    largest: int = NO_TIMESTAMP
    delta_of_largest: int = -1


class Reader:
    """A simple reference implementation."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def byte(self) -> int:
        self.at += 1
        if self.at > len(self.data):
            raise InvalidRecordsError
        return self.data[self.at - 1]

    def number(self, most_bytes: int = 5) -> int:
        value = 0
        for place in range(most_bytes):
            byte = self.byte()
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                # Java's integers have no more bits
                value &= 2**64 - 1 if most_bytes == 10 else 2**32 - 1
                return value >> 1 if value % 2 == 0 else -(value >> 1) - 1
        raise InvalidRecordsError

    def skip(self, size: int) -> None:
        self.at += max(0, size)
        if self.at > len(self.data):
            raise InvalidRecordsError

    def record(self, base: int, seen: Seen) -> Seen:
        size = self.number()
        end = self.at + size
        self.byte()
        timestamp = (base + self.number(10) + 2**63) % 2**64 - 2**63
        offset = self.number()
        key = self.number()
        self.skip(key)
        self.skip(self.number())
        headers = self.number()
        if headers < 0 or headers > len(self.data) - self.at:
            raise InvalidRecordsError
        for _ in range(headers):
            name = self.number()
            if name < 0:
                raise InvalidRecordsError
            self.skip(name)
            self.skip(self.number())
        if self.at != end:
            raise InvalidRecordsError
        keyless, smallest, largest, delta = seen
        if timestamp > largest:
            largest, delta = timestamp, offset
        return Seen(keyless + (key < 0), smallest if timestamp == -1 else min(smallest, timestamp), largest, delta)


def read(body: bytes, count: int, base: int = TIME) -> Seen | None:
    """Return the result of the reference implementation, or None for invalid records."""
    reader = Reader(body)
    seen = Seen()
    try:
        for _ in range(count):
            seen = reader.record(base, seen)
    except InvalidRecordsError:
        return None
    return seen if reader.at == len(body) else None


def walked(pieces: list[bytes], count: int, base: int = TIME) -> Seen | None:
    walk = new_walk(count, base, NO_TIMESTAMP, -(2**31))
    try:
        walk_in_pieces(walk, pieces)
    except KafkaError as error:
        if error.code is not ErrorCode.invalid_record:
            raise
        return None
    return Seen(walk.keyless, walk.smallest, walk.largest, walk.delta_of_largest)


def cut(body: bytes, dice: random.Random) -> list[bytes]:
    """Cut the body into pieces, including empty ones, single bytes, and several records."""
    pieces = []
    most = max(dice.choice((1, 3, 30, 300, 10_000)), len(body) // 1000)
    while body:
        size = dice.randrange(most + 1)
        pieces.append(body[:size])
        body = body[size:]
    return pieces


def body_of(records: list[RecordData]) -> bytes:
    return build_batch(records)[HEADER_SIZE:]


def damaged(body: bytes, dice: random.Random, times: int) -> bytes:
    """Change bytes, mostly slightly, so that many lengths remain plausible."""
    changed = bytearray(body)
    for _ in range(times):
        at = dice.randrange(len(changed))
        changed[at] = dice.choice(
            (
                changed[at] + 2 & 0xFF,
                changed[at] - 2 & 0xFF,
                changed[at] ^ 0x80,
                changed[at] ^ 1,
                0,
                dice.randrange(256),
            )
        )
    return bytes(changed)


def similar(dice: random.Random) -> list[RecordData]:
    """Return records of one shape, as in a load test, with a few exceptions."""
    key = dice.choice((None, 0, 5, 70))
    value = dice.choice((None, 0, 3, 60, 100))
    headers = dice.choice(((), (), (("name", b"value"),), (("a", None), ("b", b"c" * 70))))
    pace = dice.choice((0, 0, 1, 3, 90))
    records = [
        RecordData(
            None if key is None else dice.randbytes(key),
            None if value is None else dice.randbytes(value),
            TIME + pace * place,
            headers,
        )
        for place in range(dice.choice((1, 2, 7, 8, 9, 20, 63, 64, 65, 80, 200)))
    ]
    for _ in range(dice.choice((0, 0, 1, 5))):
        place = dice.randrange(len(records))
        records[place] = records[place]._replace(value=dice.randbytes(dice.randrange(120)))
    return records


def different(dice: random.Random) -> list[RecordData]:
    """Return records with keys and values of any lengths."""
    key_size = dice.choice((0, 8, 36, 63))
    keyed = dice.choice((True, False, "similar"))
    shortest, longest = dice.choice(((0, 5), (0, 70), (0, 400), (64, 400), (100, 9000)))
    odds = dice.choice((0.97, 1))
    many_headers = dice.random() < 0.2
    return [
        RecordData(
            dice.randbytes(key_size if keyed == "similar" else dice.randrange(20))
            if keyed and dice.random() < odds
            else None,
            dice.randbytes(dice.randrange(shortest, longest)) if dice.random() < odds else None,
            TIME + place // 10,
            (("trace", dice.randbytes(dice.randrange(80))),) if many_headers or dice.random() < 1 - odds else (),
        )
        for place in range(dice.choice((1, 3, 20, 70, 150)))
    ]


FEW = settings(max_examples=examples(25), suppress_health_check=list(HealthCheck), deadline=None)


@FEW
@given(
    st.lists(anything, min_size=1, max_size=40),
    dices,
    st.integers(0, 3),
    st.sampled_from((TIME, 0, -1, 2**63 - 1, -(2**63), 2**62)),
)
def test_any_records_are_read_like_the_reference(
    twin: None, records: list[RecordData], dice: random.Random, times: int, base: int
) -> None:
    body = damaged(body_of(records), dice, times)
    for count in (len(records), len(records) + 1, len(records) - 1):
        expected = read(body, count, base)
        assert walked([body], count, base) == expected
        assert walked(cut(body, dice), count, base) == expected


@FEW
@given(dices, st.sampled_from((similar, different)))
def test_many_records_are_read_like_the_reference(
    twin: None, dice: random.Random, make: Callable[[random.Random], list[RecordData]]
) -> None:
    records = make(dice)
    valid = body_of(records)
    count = len(records)
    base = records[0].timestamp
    newest = max(record.timestamp for record in records)
    place = next(place for place, record in enumerate(records) if record.timestamp == newest)
    keyless = sum(record.key is None for record in records)
    assert walked([valid], count, base) == (keyless, min(record.timestamp for record in records), newest, place)
    for times in (1, 1, 1, 2, 5):
        body = damaged(valid, dice, times)
        assert walked([body], count) == read(body, count), times
    body = damaged(valid, dice, 1)
    assert walked(cut(body, dice), count) == read(body, count)
    for torn in (valid[:-1], valid + b"\0", valid[: len(valid) // 2]):
        assert walked([torn], count) is None
        assert walked(cut(torn, dice), count) is None
    assert walked([valid], count + 1) is None
    assert walked([valid, b"", b"\0"], count) is None
    assert walked([valid, b""], count) is not None


def test_one_wrong_number_among_similar_records_is_found(twin: None) -> None:
    """Change every number of a record, with and without its continuation bit."""
    valid = body_of([RecordData(None, bytes(100), TIME + i // 20) for i in range(75)])
    for place in (0, 30, 63, 64, 74):
        begin = 109 * place if place < 64 else 109 * 64 + 110 * (place - 64)
        wide = 1 if place >= 64 else 0
        # length, attributes, timestamp delta, offset delta, key length, value length, header count
        for where in (0, 2, 3, 4, 5 + wide, 6 + wide, 7 + wide, 108 + wide):
            for changed_by in (1, 2, 0x80):
                body = bytearray(valid)
                body[begin + where] = body[begin + where] + changed_by & 0xFF
                assert walked([bytes(body)], 75) == read(bytes(body), 75), (place, where, changed_by)


@FEW
@given(st.binary(max_size=60), st.integers(1, 3), dices)
def test_arbitrary_bytes_are_read_like_the_reference(twin: None, body: bytes, count: int, dice: random.Random) -> None:
    assert walked([body], count) == read(body, count)
    assert walked(cut(body, dice), count) == read(body, count)


def test_a_record_may_arrive_in_pieces_of_any_size(twin: None) -> None:
    for size in (7, 8, 40, 200):
        records = [
            RecordData(b"k" * (size % 5), b"v" * size, TIME, [("name", b"value")] * (size % 3)),
            RecordData(None, None, TIME - 2**40, ()),
        ]
        body = body_of(records)
        for length in range(1, len(body) + 1):
            pieces = [body[at : at + length] for at in range(0, len(body), length)]
            assert walked(pieces, 2) == (1, TIME - 2**40, TIME, 0), (size, length)


def test_a_record_with_very_many_headers_is_walked_in_slices(twin: None) -> None:
    content = b"\0\0\0" + varint(-1) * 2 + varint(20_000) + b"\0\0" * 20_000
    body = varint(len(content)) + content
    walk = new_walk(1, TIME, NO_TIMESTAMP, 0)
    position = walk.walk(body, 0, 4000, True, False)
    assert 8000 <= position < 8100
    calls = 1
    while walk.left:
        position = walk.walk(body, position, 4000, True, False)
        calls += 1
    assert position == len(body)
    assert 5 <= calls <= 6


def test_a_walk_can_stop_at_the_first_newer_record(twin: None) -> None:
    records = [RecordData(None, bytes(30), TIME + (place * 7) % 50) for place in range(200)]
    body = body_of(records)
    for newer_than in (TIME - 1, TIME, TIME + 20, TIME + 48, TIME + 49):
        for first in (0, 1, 77, 199):
            for pieces in ([body], [body[at : at + 11] for at in range(0, len(body), 11)]):
                walk = new_walk(200, TIME, newer_than, first)
                found = walk_in_pieces(walk, pieces, finds_one=True)
                expected = [place for place in range(first, 200) if records[place].timestamp > newer_than]
                assert found is bool(expected)
                if expected:
                    assert walk.delta_of_largest == expected[0]
                    assert walk.largest == records[expected[0]].timestamp


def test_every_record_yields_position_key_and_timestamp(twin: None) -> None:
    records = [
        RecordData(b"k" if place % 3 else None, bytes(place), TIME + place, [("n", None)] * (place % 5))
        for place in range(100)
    ]
    batch = build_batch(records)
    expected = [(place, record.key is not None, record.timestamp) for place, record in enumerate(records)]
    body = batch[HEADER_SIZE:]
    for length in (7, 1000, 100_000):
        pieces = [body[at : at + length] for at in range(0, len(body), length)]
        assert list(each_record(parse_header(batch), pieces)) == expected


def test_excess_bits_of_a_varint_are_dropped_as_in_kafka(twin: None) -> None:
    key_length = b"\x86\x80\x80\x80\x10"
    content = b"\0\0\0" + key_length + b"key" + b"\1" + b"\0"
    body = bytes([2 * len(content)]) + content
    assert walked([body], 1) == read(body, 1) == (0, TIME, TIME, 0)


def test_timestamps_wrap_at_64_bits(twin: None) -> None:
    edges = (0, 1, -1, 5, -5, 2**61, -(2**61), 2**62, -(2**62), 2**63 - 1, -(2**63), -(2**63) + 1)
    for base, delta in itertools.product(edges, repeat=2):
        content = b"\0" + varint(delta) + b"\0" + b"\1" + b"\1" + b"\0"
        body = varint(len(content)) + content
        assert walked([body], 1, base) == read(body, 1, base), (base, delta)


def test_header_names_are_any_bytes_and_timestamps_wrap() -> None:
    content = b"\0" + varint(2**62) + b"\0" + b"\1" + b"\1" + b"\2" + b"\2\xff" + b"\1"
    body = varint(len(content)) + content
    header = parse_header(build_batch([RecordData(None, None, 2**62)]))
    [record] = records_of(header, body)
    assert record.timestamp == -(2**63)
    [(name, value)] = record.headers
    assert value is None
    again = build_batch([RecordData(None, None, 0, [(name, value)])])
    assert again.endswith(b"\2\xff\1")
