"""Keys, and which records stay: against the decoder that reads every field, and for what is no honest batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ErrorCode, KafkaError
from headrace.wire.batch import BatchHeader, parse_header
from headrace.wire.record_spans import batch_of, keys_of, survey, survivors
from headrace.wire.records import RecordData, build_batch, records_of, uncompressed_body

TIME = 1_700_000_000_000
texts = st.one_of(st.none(), st.binary(max_size=6), st.binary(min_size=60, max_size=200))
headers = st.sampled_from(((), (("name", b"value"),)))
records = st.builds(RecordData, texts, texts, st.integers(TIME, TIME + 100_000), headers)


def _batch(content: list[RecordData], base_offset: int = 0) -> tuple[BatchHeader, bytes]:
    batch = build_batch(content, base_offset=base_offset)
    header = parse_header(batch)
    return header, uncompressed_body(header, batch, 0)


def _without(header: BatchHeader, body: bytes, fates: bytes) -> tuple[BatchHeader, bytes]:
    batch = batch_of(header, body, survivors(header, body, fates), delete_horizon_ms=None)
    header = parse_header(batch)
    return header, uncompressed_body(header, batch, 0)


@given(st.lists(records, min_size=1, max_size=200), st.integers(0, 2**40), st.data())
def test_keys_and_places_are_those_of_the_records(
    content: list[RecordData], base_offset: int, data: st.DataObject
) -> None:
    whole = _batch(content, base_offset)
    fates = bytes(data.draw(st.lists(st.sampled_from((0, 0, 1, 2)), min_size=len(content), max_size=len(content))))
    if set(fates) == {1}:
        fates = b"\0" * len(content)
    for header, body in (whole, _without(*whole, fates)):
        decoded = list(records_of(header, body))
        offsets, keys, keyless, valueless = keys_of(header, body)
        assert offsets is not None
        assert list(offsets) == [each.offset for each in decoded]
        assert keys == [each.key for each in decoded]
        assert keyless == [place for place, each in enumerate(decoded) if each.key is None]
        assert valueless == [place for place, each in enumerate(decoded) if each.value is None]
        spans = survey(header, body)
        assert [(each.offset, each.key, each.has_value) for each in spans] == [
            (each.offset, each.key, each.value is not None) for each in decoded
        ]
        assert b"".join(body[each.start : each.end] for each in spans) == body
        assert [header.base_timestamp + each.timestamp_delta for each in spans] == [each.timestamp for each in decoded]


@given(st.lists(records, min_size=2, max_size=100), st.data())
def test_what_stays_is_what_is_not_gone_with_gaps_and_without(content: list[RecordData], data: st.DataObject) -> None:
    whole = _batch(content, 1000)
    some = st.lists(st.sampled_from((0, 1, 2)), min_size=len(content), max_size=len(content))
    first, second = bytes(data.draw(some)), bytes(data.draw(some))
    if set(first) == {1}:
        return
    for (header, body), fates in ((whole, first), (_without(*whole, first), second)):
        decoded = {each.offset: each for each in records_of(header, body)}
        kept = survivors(header, body, fates)
        assert [each.offset for each in kept] == [offset for offset in decoded if fates[offset - 1000] != 1]
        for each in kept:
            assert each.has_value == (fates[each.offset - 1000] == 0)
            assert header.base_timestamp + each.timestamp_delta == decoded[each.offset].timestamp
        places = {each.offset: (each.start, each.end) for each in survey(header, body)}
        assert all(places[each.offset] == (each.start, each.end) for each in kept)


@pytest.mark.parametrize("zigzags", [(0, 0), (2, 0), (0, 10), (6, 6), (1, 2), (0, 3)], ids=str)
def test_offsets_that_do_not_ascend_within_the_batch_are_not_told(zigzags: tuple[int, int]) -> None:
    header, body = _batch([RecordData(b"k", b"v", TIME)] * 2)
    half = len(body) // 2
    # length, attributes, timestamp: one byte each
    lying = bytearray(body)
    for place, zigzag in enumerate(zigzags):
        lying[place * half + 3] = zigzag
    assert keys_of(header, bytes(lying)) == (None, [b"k", b"k"], [], [])
    with pytest.raises(KafkaError, match="do not ascend") as caught:
        survey(header, bytes(lying))
    assert caught.value.code is ErrorCode.corrupt_message


@pytest.mark.parametrize("cut", [1, 5])
def test_a_body_that_ends_early_is_refused(cut: int) -> None:
    header, body = _batch([RecordData(b"key", b"value", TIME)] * 3)
    with pytest.raises(KafkaError) as caught:
        keys_of(header, body[:-cut])
    assert caught.value.code is ErrorCode.corrupt_message


def test_a_key_that_is_longer_than_its_record_is_refused() -> None:
    header, body = _batch([RecordData(b"key", b"value", TIME)] * 3)
    lying = bytearray(body)
    lying[4] = 60 << 1
    with pytest.raises(KafkaError, match="do not fit"):
        keys_of(header, bytes(lying))
