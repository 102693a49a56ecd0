"""Columns equal the results of the record-by-record decoder, and invalid batches are refused."""

import random
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.cleaner.columns import columns_of
from headrace.wire.batch import BatchHeader, parse_header
from headrace.wire.records import RecordData, build_batch, records_of, uncompressed_body
from tests.support.examples import examples

TIME = 1_700_000_000_000
# Hypothesis draws long texts byte by byte
longer = st.integers(60, 200).map(lambda size: random.Random(size).randbytes(size))
texts = st.one_of(st.none(), st.binary(max_size=6), longer, st.just(bytes(8_300)))
headers = st.sampled_from(((), (("name", b"value"),)))
records = st.builds(RecordData, texts, texts, st.integers(TIME - 100_000, TIME + 100_000), headers)


def _batch(content: list[RecordData], base_offset: int = 0) -> tuple[BatchHeader, bytes]:
    batch = build_batch(content, base_offset=base_offset)
    header = parse_header(batch)
    return header, uncompressed_body(header, batch, 0)


def _check(batches: list[tuple[BatchHeader, bytes]]) -> None:
    columns = columns_of([header for header, _ in batches], [body for _, body in batches])
    decoded = [(header, record) for header, body in batches for record in records_of(header, body)]
    assert columns.counts.tolist() == [header.record_count for header, _ in batches]
    assert columns.has_offsets.all()
    assert columns.deltas.tolist() == [record.offset - header.base_offset for header, record in decoded]
    assert columns.has_value.tolist() == [record.value is not None for _, record in decoded]
    content = columns.content.tobytes()
    rows = zip(columns.key_starts.tolist(), columns.key_sizes.tolist(), strict=True)
    keys = [None if size < 0 else content[start : start + size] for start, size in rows]
    assert keys == [record.key for _, record in decoded]
    position = 0
    sizes = columns.sizes.tolist()
    for header, body in batches:
        assert sum(sizes[position : position + header.record_count]) == len(body)
        position += header.record_count


@settings(max_examples=examples(30))
@given(st.lists(st.lists(records, min_size=1, max_size=20), min_size=1, max_size=4), st.integers(0, 2**40))
def test_columns_equal_the_decoded_records(content: list[list[RecordData]], base_offset: int) -> None:
    _check([_batch(each, base_offset + 1000 * place) for place, each in enumerate(content)])


@pytest.mark.parametrize(
    ("value_size", "runs"), [(10, (1, 15, 16, 63, 64, 65, 128, 700)), (100, (1, 64, 700)), (9_000, (1, 65))]
)
def test_runs_of_records_of_one_size_are_found(value_size: int, runs: tuple[int, ...]) -> None:
    """Covers runs in ascending and descending order, with sizes of one, two and three bytes."""
    chance = random.Random(value_size)
    content = []
    for run in runs:
        content += [RecordData(b"k", bytes(value_size), TIME)] * run
        content += [RecordData(b"k", bytes(chance.choice((0, 1, 50, 51, value_size + 1))), TIME)]
    _check([_batch(content), _batch(content[::-1], 10_000), _batch(content[:5], 20_000)])


def test_offsets_that_do_not_ascend_within_the_batch_are_detected() -> None:
    header, body = _batch([RecordData(b"k", b"v", TIME)] * 2)
    half = len(body) // 2
    # length, attributes, timestamp: one byte each
    for zigzags in ((0, 0), (2, 0), (0, 10), (6, 6), (1, 2), (0, 3)):
        damaged = bytearray(body)
        for place, zigzag in enumerate(zigzags):
            damaged[place * half + 3] = zigzag
        columns = columns_of([header, header, header], [body, bytes(damaged), body])
        assert columns.has_offsets.tolist() == [True, False, True], zigzags


def test_a_body_that_ends_early_is_refused() -> None:
    header, body = _batch([RecordData(b"key", b"value", TIME)] * 3)
    for bodies in ([body[:-1]], [body[:-5]], [body[:-1], body], [body[:-5], body]):
        with pytest.raises(KafkaError) as caught:
            columns_of([header] * len(bodies), bodies)
        assert caught.value.code is ErrorCode.corrupt_message


def test_an_invalid_field_is_refused() -> None:
    header, body = _batch([RecordData(b"key", b"value" * 5, TIME)] * 3)
    third = len(body) // 3
    for place, invalid, reason in (
        (0, b"\xff\xff\xff\xff\xff\x01", "more than 5 bytes"),
        (2, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "more than 10 bytes"),
        (3, b"\xff\xff\xff\xff\xff\x01", "more than 5 bytes"),
        (4, b"\xfe\xff\xff\xff\x0f", "do not fit"),
        (4, bytes([60 << 1]), "do not fit"),
    ):
        for record in (0, 2):
            damaged = bytearray(body)
            at = record * third + place
            damaged[at : at + len(invalid)] = invalid
            with pytest.raises(KafkaError, match=reason if record == 0 else None) as caught:
                columns_of([header], [bytes(damaged)])
            assert caught.value.code is ErrorCode.corrupt_message, (place, record)


def test_a_negative_length_is_refused() -> None:
    header, body = _batch([RecordData(b"key", b"value", TIME)] * 3)
    damaged = bytearray(body)
    damaged[len(body) // 3] |= 1
    with pytest.raises(KafkaError, match="negative"):
        columns_of([header], [bytes(damaged)])


@settings(max_examples=examples(30))
@given(st.lists(records, min_size=1, max_size=10), st.builds(random.Random, st.integers(0, 2**32)))
def test_arbitrary_bytes_give_columns_or_a_kafka_error(content: list[RecordData], dice: random.Random) -> None:
    header, body = _batch(content)
    for count in (len(content), len(content) + 1, 1, -1, 0, 2**31 - 1) * 4:
        damaged = bytearray(body)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(len(body))] = dice.randrange(256)
        with suppress(KafkaError):
            columns = columns_of([header._replace(record_count=count)], [bytes(damaged)])
            assert len(columns.sizes) == count
            assert sum(columns.sizes.tolist()) == len(body)
