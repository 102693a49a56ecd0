"""What passes as records is what Kafka's DefaultRecord.readFrom would read, whichever way it was checked."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ErrorCode, KafkaError
from headrace.wire import record_checks, record_shapes
from headrace.wire.batch import HEADER_SIZE, parse_header
from headrace.wire.record_checks import all_have_keys, check_records
from headrace.wire.record_templates import Templates
from headrace.wire.records import RecordData, build_batch, records_of, varint

TIME = 1_700_000_000_000
texts = st.one_of(st.binary(max_size=6), st.binary(min_size=50, max_size=80), st.binary(min_size=8100, max_size=8300))
anything = st.builds(
    RecordData,
    st.none() | texts,
    st.none() | texts,
    st.integers(TIME - 100_000, TIME + 100_000),
    st.sampled_from(((), (), (("name", b"value"),), (("a", None), ("b" * 70, bytes(200))))),
)


class WrongError(Exception):
    """What this reader refuses."""


class Reader:
    """The plainest reader of records that there can be."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def byte(self) -> int:
        self.at += 1
        if self.at > len(self.data):
            raise WrongError
        return self.data[self.at - 1]

    def number(self, most_bytes: int = 5) -> int:
        value = 0
        for place in range(most_bytes):
            byte = self.byte()
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                # Java has no room for more
                value &= 2**64 - 1 if most_bytes == 10 else 2**32 - 1
                return value >> 1 if value % 2 == 0 else -(value >> 1) - 1
        raise WrongError

    def skip(self, size: int) -> None:
        self.at += max(0, size)
        if self.at > len(self.data):
            raise WrongError

    def record(self) -> None:
        size = self.number()
        end = self.at + size
        self.byte()
        self.number(10)
        self.number()
        self.skip(self.number())
        self.skip(self.number())
        headers = self.number()
        if headers < 0 or headers > len(self.data) - self.at:
            raise WrongError
        for _ in range(headers):
            name = self.number()
            if name < 0:
                raise WrongError
            self.skip(name)
            self.skip(self.number())
        if self.at != end:
            raise WrongError


def are_records(body: bytes, count: int) -> bool:
    reader = Reader(body)
    try:
        for _ in range(count):
            reader.record()
    except WrongError:
        return False
    return reader.at == len(body)


def pass_as_records(body: bytes, count: int, *, in_front: bytes = b"") -> bool:
    data = in_front + body
    try:
        position = check_records(data, len(in_front), count)
    except KafkaError as error:
        if error.code is not ErrorCode.invalid_record:
            raise
        return False
    assert position <= len(data)
    return position == len(data)


def body_of(records: list[RecordData]) -> bytes:
    return build_batch(records)[HEADER_SIZE:]


def damaged(body: bytes, dice: random.Random, times: int) -> bytes:
    """Bytes changed, mostly by a little, so that many lengths still lie within what there is."""
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


def alike(dice: random.Random) -> list[RecordData]:
    """Records of one shape, as a load test sends them, with a few that differ."""
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
        for place in range(dice.choice((1, 2, 7, 8, 9, 20, 63, 64, 65, 80, 200, 400)))
    ]
    for _ in range(dice.choice((0, 0, 1, 5))):
        place = dice.randrange(len(records))
        records[place] = records[place]._replace(value=dice.randbytes(dice.randrange(120)))
    return records


def different(dice: random.Random) -> list[RecordData]:
    """Records whose keys and values have any lengths."""
    key_size = dice.choice((0, 8, 36, 63))
    keyed = dice.choice((True, False, "alike"))
    shortest, longest = dice.choice(((0, 5), (0, 70), (0, 400), (64, 400), (100, 9000)))
    odds = dice.choice((0.97, 1))
    many_headers = dice.random() < 0.2
    return [
        RecordData(
            dice.randbytes(key_size if keyed == "alike" else dice.randrange(20))
            if keyed and dice.random() < odds
            else None,
            dice.randbytes(dice.randrange(shortest, longest)) if dice.random() < odds else None,
            TIME + place // 10,
            (("trace", dice.randbytes(dice.randrange(80))),) if many_headers or dice.random() < 1 - odds else (),
        )
        for place in range(dice.choice((1, 3, 20, 70, 150, 300)))
    ]


@given(st.lists(anything, min_size=1, max_size=40), st.randoms(use_true_random=False), st.integers(0, 3))
def test_any_records(records: list[RecordData], dice: random.Random, times: int) -> None:
    body = damaged(body_of(records), dice, times)
    for count in (len(records), len(records) + 1, len(records) - 1):
        assert pass_as_records(body, count) is are_records(body, count)


@pytest.mark.parametrize("kind", [alike, different])
@settings(max_examples=300)
@given(seed=st.integers(0, 2**32))
def test_many_records(kind: object, seed: int) -> None:
    dice = random.Random(seed)
    records = alike(dice) if kind is alike else different(dice)
    honest = body_of(records)
    count = len(records)
    in_front = dice.choice((b"", b"\0", b"\xff"))
    # often enough for what can be remembered of them
    for _ in range(dice.choice((1, 2, 3, 4))):
        assert pass_as_records(honest, count, in_front=in_front)
    assert all_have_keys(honest, count) is all(record.key is not None for record in records)
    for times in (1, 1, 1, 1, 2, 5):
        body = damaged(honest, dice, times)
        assert pass_as_records(body, count, in_front=in_front) is are_records(body, count), (seed, times)
        if all_have_keys(body, count):
            assert are_records(body, count)
    for torn in (honest[:-1], honest + b"\0", honest[: len(honest) // 2]):
        assert not pass_as_records(torn, count, in_front=in_front)
        assert not pass_as_records(torn, count + 1, in_front=in_front) or are_records(torn, count + 1)
    assert not pass_as_records(honest, count + 1, in_front=in_front)


@pytest.mark.parametrize("place", [0, 1, 30, 63, 64, 74])
@pytest.mark.parametrize("where", range(8))
@pytest.mark.parametrize("known", range(5))
def test_one_lie_among_records_that_are_alike_is_found(
    place: int, where: int, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number of each record is made one more, before and after their shape, and that of the batch, is known."""
    record_shapes._shapes.clear()
    monkeypatch.setattr(record_checks, "_templates", Templates())
    records = [RecordData(None, bytes(100), TIME + i // 20) for i in range(75)]
    honest = body_of(records)
    for _ in range(known):
        assert pass_as_records(honest, 75)
    begin = 109 * place if place < 64 else 109 * 64 + 110 * (place - 64)
    wide = 1 if place >= 64 else 0
    # length, attributes, timestamp delta, offset delta, length of the key, that of the value, and the count of headers
    at = begin + (0, 2, 3, 4, 5 + wide, 6 + wide, 7 + wide, 108 + wide)[where]
    for changed_by in (1, 2, 0x80):
        body = bytearray(honest)
        body[at] = body[at] + changed_by & 0xFF
        assert pass_as_records(bytes(body), 75) is are_records(bytes(body), 75)


def test_bits_that_a_number_has_no_room_for_are_dropped_as_by_kafka() -> None:
    key_length = b"\x86\x80\x80\x80\x10"
    content = b"\0\0\0" + key_length + b"key" + b"\1" + b"\0"
    body = bytes([2 * len(content)]) + content
    assert are_records(body, 1)
    assert pass_as_records(body, 1)


def test_names_of_headers_are_any_bytes_and_timestamps_wrap() -> None:
    content = b"\0" + varint(2**62) + b"\0" + b"\1" + b"\1" + b"\2" + b"\2\xff" + b"\1"
    body = varint(len(content)) + content
    header = parse_header(build_batch([RecordData(None, None, 2**62)]))
    [record] = records_of(header, body)
    assert record.timestamp == -(2**63)
    [(name, value)] = record.headers
    assert value is None
    again = build_batch([RecordData(None, None, 0, [(name, value)])])
    assert again.endswith(b"\2\xff\1")


def test_shapes_are_few_and_small() -> None:
    """Records with thousands of headers have no shape, and those of many lengths only the last some."""
    for size in range(80):
        for headers in (0, 16, 17, 4000 if size < 2 else 18):
            record = build_batch([RecordData(bytes(size), b"", TIME, [("", None)] * headers)])[HEADER_SIZE:]
            for count in range(8, 20):
                assert pass_as_records(record * count, count)
    shapes = record_shapes._shapes.values()
    assert 0 < len(shapes) <= 64
    assert all(len(shape.fixed) <= 64 for shape in shapes)


def test_templates_are_of_what_is_alike_and_neither_small_nor_large(monkeypatch: pytest.MonkeyPatch) -> None:
    templates = Templates()
    monkeypatch.setattr(record_checks, "_templates", templates)
    small = [RecordData(None, bytes(100), TIME)] * 15
    many = [RecordData(None, bytes(100), TIME)] * 1200
    mixed = [RecordData(None, bytes(100 + place // 20), TIME) for place in range(120)]
    slow = [RecordData(None, bytes(100), TIME + 100 * place) for place in range(120)]
    many_headers = [RecordData(None, bytes(100), TIME, [("", None)] * 16)] * 20
    for records in (small, many, mixed, slow, many_headers):
        body = body_of(records)
        for _ in range(300):
            assert pass_as_records(body, len(records))
    assert len(templates) == 0
    body = body_of([RecordData(b"key", bytes(100), TIME)] * 75)
    for _ in range(4):
        assert pass_as_records(body, 75)
    assert len(templates) == 1


def test_ever_new_layouts_are_learned_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    templates = Templates()
    monkeypatch.setattr(record_checks, "_templates", templates)
    shapes = [body_of([RecordData(None, bytes(size), TIME)] * 90) for size in range(100, 160, 3)]
    for body in shapes:
        assert pass_as_records(body, 90)
        assert pass_as_records(body, 90)
    # what it begins with is for four; then there is one for every 64 that had none
    assert 4 <= len(templates) <= 4 + 2 * len(shapes) // 64 + 1
    for _ in range(400):
        for body in shapes:
            assert pass_as_records(body, 90)
    assert len(templates) == len(shapes)
    for size in range(100, 140):
        for count in range(16, 64, 4):
            body = body_of([RecordData(None, bytes(size), TIME)] * count)
            for _ in range(30):
                assert pass_as_records(body, count)
    assert 64 <= len(templates) <= 128
