"""Compaction keeps some records of a batch and builds a new one from them."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.cleaner.columns import columns_of
from headrace.storage.cleaner.spans import batch_of, only_record, survivors
from headrace.wire.batch import BatchHeader, parse_header
from headrace.wire.records import RecordData, build_batch, records_of, uncompressed_body
from tests.support.examples import examples

TIME = 1_700_000_000_000
# Hypothesis draws long texts byte by byte
longer = st.integers(60, 200).map(lambda size: random.Random(size).randbytes(size))
texts = st.one_of(st.none(), st.binary(max_size=6), longer)
headers = st.sampled_from(((), (("name", b"value"),)))
# cheaper than st.randoms, which records every number
dices = st.builds(random.Random, st.integers(0, 2**32))
records = st.builds(RecordData, texts, texts, st.integers(TIME, TIME + 100_000), headers)


def _opened(batch: bytes) -> tuple[BatchHeader, bytes]:
    header = parse_header(batch)
    return header, uncompressed_body(header, batch, 0)


@settings(max_examples=examples(30))
@given(st.lists(records, min_size=1, max_size=30), st.integers(0, 2**40), dices)
def test_kept_records_are_unchanged(content: list[RecordData], base_offset: int, dice: random.Random) -> None:
    header, body = _opened(build_batch(content, base_offset=base_offset))
    # twice, because the second batch has gaps
    for _ in range(2):
        fates = bytes(dice.choices((0, 0, 1, 2), k=header.record_count))
        if set(fates) == {1}:
            return
        sizes = columns_of([header], [body]).sizes.tolist()
        kept = survivors(body, fates, sizes)
        assert [item.has_value for item in kept] == [fate == 0 for fate in fates if fate != 1]
        expected = [record for record, fate in zip(records_of(header, body), fates, strict=True) if fate != 1]
        assert [header.base_timestamp + item.timestamp_delta for item in kept] == [item.timestamp for item in expected]
        horizon = dice.choice((None, TIME + 50_000))
        later, rest = _opened(batch_of(header, body, kept, delete_horizon_ms=horizon))
        assert list(records_of(later, rest)) == expected
        assert (later.base_offset, later.last_offset) == (header.base_offset, header.last_offset)
        assert later.max_timestamp == max(item.timestamp for item in expected)
        header, body = later, rest


def test_the_only_record_is_the_whole_body() -> None:
    _, body = _opened(build_batch([RecordData(b"key", b"value", TIME)]))
    assert only_record(body) == (True, 0, len(body), 0)
    assert survivors(body, b"\0", [len(body)]) == [only_record(body)]
