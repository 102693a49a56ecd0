import os
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ErrorCode, KafkaError
from headrace.wire import batch as rb
from headrace.wire.compression import Codec
from headrace.wire.records import (
    Record,
    RecordData,
    build_batch,
    iter_records,
    plain_batch,
    recompress,
    uncompressed_body,
)
from tests.support.examples import examples

headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3).map(tuple)
record_data = st.builds(
    RecordData,
    key=st.none() | st.binary(max_size=20),
    value=st.none() | st.binary(max_size=100),
    timestamp=st.integers(0, 2**44),
    headers=headers,
)


def as_read(records: list[RecordData], base_offset: int) -> list[Record]:
    return [Record(base_offset + i, r.timestamp, r.key, r.value, r.headers) for i, r in enumerate(records)]


@settings(max_examples=examples(30))
@given(records=st.lists(record_data, min_size=1, max_size=10), codec=st.sampled_from(Codec), base=st.integers(0, 2**40))
def test_records_are_unchanged_by_every_codec(records: list[RecordData], codec: Codec, base: int) -> None:
    batch = build_batch(records, base_offset=base, codec=codec)

    assert list(iter_records(batch)) == as_read(records, base)
    assert rb.batch_crc_ok(batch, 0, len(batch))


@settings(max_examples=examples(30))
@given(records=st.lists(record_data, min_size=1, max_size=10), old=st.sampled_from(Codec), new=st.sampled_from(Codec))
def test_a_recompressed_batch_keeps_its_records_and_header(records: list[RecordData], old: Codec, new: Codec) -> None:
    batch = build_batch(records, codec=old, producer_id=7, producer_epoch=1, base_sequence=5)

    body = uncompressed_body(rb.parse_header(batch), batch, 0)
    pieces = [body[at : at + 50] for at in range(0, len(body), 50)]
    again = recompress(rb.parse_header(batch), pieces, new, None, 1 << 20)

    header = rb.parse_header(again)
    assert header.codec == new
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 5)
    assert list(iter_records(again)) == list(iter_records(batch))


def test_recompression_stops_when_the_batch_is_too_large() -> None:
    batch = build_batch([RecordData(None, b"v", 0)])

    def pieces() -> Iterator[bytes]:
        for _ in range(100):
            yield os.urandom(1000)
        raise AssertionError("it goes on")

    for codec in Codec:
        with pytest.raises(KafkaError, match=rf"compression\.type {codec.name.lower()}") as caught:
            recompress(rb.parse_header(batch), pieces(), codec, None, 5000 if codec is Codec.NONE else 50)
        assert caught.value.code is ErrorCode.message_too_large


@settings(max_examples=examples(30))
@given(st.lists(record_data, min_size=1, max_size=10), st.builds(random.Random, st.integers(0, 2**32)))
def test_damaged_bytes_raise_only_kafka_errors(records: list[RecordData], dice: random.Random) -> None:
    for codec in Codec:
        batch = build_batch(records, codec=codec)
        for _ in range(30 if codec is Codec.NONE else 3):
            damaged = bytearray(batch)
            damaged[dice.randrange(len(batch))] ^= dice.randrange(1, 256)
            code = ErrorCode.none
            try:
                list(iter_records(bytes(damaged)))
            except KafkaError as error:
                code = error.code
            assert code in (ErrorCode.none, ErrorCode.corrupt_message, ErrorCode.unsupported_compression_type)


def test_an_incomplete_last_batch_is_ignored() -> None:
    whole = build_batch([RecordData(b"k", b"v", 1)])

    assert [record.value for record in iter_records(whole + whole[:-1])] == [b"v"]


def test_a_batch_that_decompresses_to_too_much_is_refused() -> None:
    batch = build_batch([RecordData(None, bytes(1_000_000), 1)], codec=Codec.ZSTD)

    with pytest.raises(KafkaError, match="decompresses to more than") as caught:
        uncompressed_body(rb.parse_header(batch), batch, 0, 100_000)
    assert caught.value.code is ErrorCode.corrupt_message


def test_all_records_of_a_log_append_time_batch_have_its_timestamp() -> None:
    batch = build_batch([RecordData(None, b"a", 5), RecordData(None, b"b", 9)])

    stamped = rb.with_log_append_time(rb.parse_header(batch), batch, 0, 1234)

    assert [record.timestamp for record in iter_records(bytes(stamped))] == [1234, 1234]
    assert rb.batch_crc_ok(stamped, 0, len(stamped))


def test_a_plain_batch_equals_a_built_one() -> None:
    pairs = [(b"key", b"value"), (b"k" * 300, None), (b"", b"v" * 9000)]
    expected = build_batch([RecordData(key, value, 1234) for key, value in pairs], codec=Codec.ZSTD)
    assert plain_batch(pairs, 1234, Codec.ZSTD) == expected
