"""Valid batches of producers are accepted, and invalid ones refused with a reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.cleaner.record_sizes import RECORD_SIZES
from headrace.wire import batch as rb
from headrace.wire.compression import Codec
from headrace.wire.record_checks import MIN_RECORD
from headrace.wire.records import RecordData, build_batch, recompress
from headrace.wire.validation import validate_produced
from headrace.wire.varint import put_varint

LIMIT = 1 << 20


def batch_with(**changes: int) -> bytes:
    """Return a batch of three records with changed header fields and a correct checksum."""
    batch = build_batch([RecordData(b"k", b"value", 1000 + i) for i in range(3)], codec=Codec(changes.pop("of", 0)))
    header = rb.parse_header(batch)._replace(**changes)
    out = bytearray(rb.pack_header(header) + batch[rb.HEADER_SIZE :])
    rb.seal(out)
    return bytes(out)


@given(st.lists(st.integers(0, 300) | st.integers(8_000, 20_000), min_size=1, max_size=50), st.integers(1, 3))
def test_records_of_any_lengths_are_accepted(sizes: list[int], repeated: int) -> None:
    sizes = [size for size in sizes for _ in range(repeated)]
    for codec in Codec:
        batch = build_batch([RecordData(None, bytes(size), i) for i, size in enumerate(sizes)], codec=codec)
        valid = validate_produced(batch, 1 << 30)
        assert (valid.header.record_count, valid.records.largest) == (len(sizes), len(sizes) - 1)


def test_offset_deltas_that_do_not_count_from_zero_are_refused() -> None:
    header = rb.parse_header(build_batch([RecordData(b"k", b"v", 1000)] * 2))
    for deltas in ([1, 2], [0, 0], [1, 0], [0, 2], [0, -1]):
        body = bytearray()
        for delta in deltas:
            record = bytearray(2)  # attributes and timestamp delta
            put_varint(record, delta)
            record += b"\x02k\x02v\x00"
            put_varint(body, len(record))
            body += record
        for codec in Codec:
            batch = bytes(recompress(header, [bytes(body)], codec, None, LIMIT))
            with pytest.raises(KafkaError, match="the offset deltas must be 0, 1, 2") as caught:
                validate_produced(batch, LIMIT)
            assert caught.value.code is ErrorCode.invalid_record, (deltas, codec)


def test_a_wrong_record_count_is_refused() -> None:
    for count in (1, 2, 4, 1000):
        for codec in Codec:
            batch = batch_with(record_count=count, last_offset_delta=count - 1, of=codec)
            with pytest.raises(KafkaError) as caught:
                pytest.fail(f"{count} {codec}: {validate_produced(batch, LIMIT)}")
            assert caught.value.code is ErrorCode.invalid_record, (count, codec)


def test_invalid_headers_are_refused() -> None:
    changes: list[tuple[dict[str, int], ErrorCode]] = [
        ({"record_count": 0}, ErrorCode.invalid_record),
        ({"record_count": -1, "last_offset_delta": -2}, ErrorCode.invalid_record),
        ({"last_offset_delta": 7}, ErrorCode.invalid_record),
        ({"base_offset": 3}, ErrorCode.invalid_record),
        ({"magic": 1}, ErrorCode.invalid_record),
        ({"magic": 3}, ErrorCode.corrupt_message),
        ({"attributes": rb.CONTROL_FLAG}, ErrorCode.invalid_record),
        ({"attributes": 6}, ErrorCode.unknown_server_error),
        ({"attributes": Codec.ZSTD}, ErrorCode.unknown_server_error),
        ({"producer_id": 5, "base_sequence": -1}, ErrorCode.invalid_record),
        ({"batch_length": 10}, ErrorCode.corrupt_message),
        ({"batch_length": 2**31 - 1}, ErrorCode.invalid_record),
        ({"batch_length": -5}, ErrorCode.corrupt_message),
    ]
    for changed, code in changes:
        with pytest.raises(KafkaError) as caught:
            pytest.fail(f"{changed}: {validate_produced(batch_with(**changed), LIMIT)}")
        assert caught.value.code is code, changed


def test_a_wrong_checksum_is_refused() -> None:
    batch = bytearray(batch_with())
    batch[-1] ^= 1

    with pytest.raises(KafkaError, match="checksum") as caught:
        validate_produced(bytes(batch), LIMIT)
    assert caught.value.code is ErrorCode.corrupt_message


def test_no_batch_several_batches_and_too_large_ones_are_refused() -> None:
    batch = batch_with()
    for data, code in (
        (b"", ErrorCode.invalid_record),
        (batch + batch, ErrorCode.invalid_record),
        (batch[:40], ErrorCode.invalid_record),
    ):
        with pytest.raises(KafkaError) as caught:
            validate_produced(data, LIMIT)
        assert caught.value.code is code
    with pytest.raises(KafkaError, match=r"max\.message\.bytes") as caught:
        validate_produced(batch, len(batch) - 1)
    assert caught.value.code is ErrorCode.message_too_large


def test_the_error_of_a_following_batch_shows_that_its_length_is_too_small() -> None:
    following = bytes(8) + (5).to_bytes(4) + bytes(20)

    with pytest.raises(KafkaError, match="another with a length of 5; the minimum is 14"):
        validate_produced(batch_with() + following, LIMIT)


@given(st.binary(max_size=300), st.integers(0, 200))
def test_arbitrary_records_cause_no_error_but_kafka_error(body: bytes, count: int) -> None:
    header = rb.parse_header(batch_with())._replace(
        batch_length=rb.HEADER_SIZE - rb.LOG_OVERHEAD + len(body), record_count=count, last_offset_delta=count - 1
    )
    batch = bytearray(rb.pack_header(header) + body)
    rb.seal(batch)
    code = ErrorCode.invalid_record
    try:
        validate_produced(bytes(batch), LIMIT)
    except KafkaError as error:
        code = error.code
    assert code is ErrorCode.invalid_record


def test_record_sizes_agree_with_the_varint_decoder() -> None:
    for size in (*range(-3, 200), *range(8180, 8200)):
        length = bytearray()
        put_varint(length, size)
        actual = RECORD_SIZES[length[0]][(length + b"\0")[1]]
        whole = len(length) + size
        assert actual == (whole if len(length) <= 2 and whole >= MIN_RECORD else None)
