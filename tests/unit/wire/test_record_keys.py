"""The quick look agrees with the decoder that reads every field, or leaves it to that."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import KafkaError
from headrace.wire.batch import BatchHeader, parse_header
from headrace.wire.record_checks import all_have_keys
from headrace.wire.record_columns import columns_of
from headrace.wire.records import RecordData, build_batch, records_of, uncompressed_body

TIME = 1_700_000_000_000
keys = st.one_of(st.binary(max_size=6), st.binary(min_size=60, max_size=200))
values = st.one_of(st.none(), keys)
times = st.one_of(st.integers(TIME - 100_000, TIME + 100_000), st.integers(0, 2**40))
keyed = st.builds(RecordData, keys, values, times, st.just(()))
anything = st.builds(RecordData, values, values, times, st.sampled_from(((), (("name", b"value"),))))


def _batch(content: list[RecordData]) -> tuple[BatchHeader, bytes]:
    batch = build_batch(content)
    header = parse_header(batch)
    return header, uncompressed_body(header, batch, 0)


@given(st.lists(keyed, min_size=1, max_size=200))
def test_records_with_keys_are_known_for_it(content: list[RecordData]) -> None:
    _, body = _batch(content)
    assert all_have_keys(body, len(content))
    assert not all_have_keys(body, len(content) + 1)
    assert not all_have_keys(body[:-1], len(content))


@given(st.lists(anything, min_size=1, max_size=20), st.data())
def test_what_passes_are_records_with_keys_that_can_be_read_and_compacted(
    content: list[RecordData], data: st.DataObject
) -> None:
    header, honest = _batch(content)
    body = bytearray(honest)
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    count = data.draw(st.sampled_from((len(content), len(content) + 1, 1)))
    if all_have_keys(bytes(body), count):
        assert all(record.key is not None for record in records_of(header._replace(record_count=count), body))
        columns = columns_of([header._replace(record_count=count)], [bytes(body)])
        assert (columns.key_sizes >= 0).all()


@given(st.lists(anything, min_size=1, max_size=20), st.data())
def test_what_the_decoder_reads_can_be_compacted(content: list[RecordData], data: st.DataObject) -> None:
    header, honest = _batch(content)
    body = bytearray(honest)
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFF)))
    try:
        decoded = list(records_of(header, body))
    except KafkaError:
        return
    columns = columns_of([header], [bytes(body)])
    assert [size >= 0 for size in columns.key_sizes.tolist()] == [record.key is not None for record in decoded]
