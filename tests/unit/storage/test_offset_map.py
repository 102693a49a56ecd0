"""The map of keys stays within its memory."""

import gc
import tracemalloc

import pytest

from headrace.storage.offset_map import BYTES_PER_KEY, LIVE, SUPERSEDED, OffsetMap
from headrace.wire.batch import parse_header
from headrace.wire.records import RecordData, build_batch, uncompressed_body

COUNT = 500


@pytest.mark.parametrize("key_size", [20, 46, 500])
def test_a_key_takes_no_more_than_is_reckoned(key_size: int) -> None:
    offset_map = OffsetMap(0, max_bytes=1 << 30)
    gc.collect()
    tracemalloc.start()
    try:
        for base_offset in range(0, 40 * COUNT, COUNT):
            keys = [str(base_offset + place).rjust(key_size).encode() for place in range(COUNT)]
            batch = build_batch([RecordData(key, b"v", 0) for key in keys], base_offset=base_offset)
            header = parse_header(batch)
            body = uncompressed_body(header, batch, 0)
            del keys
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            offset_map.add(header, body)
            if base_offset == 0:
                # a small dict and its table weigh more
                floor = before
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(offset_map) == 40 * COUNT
    assert peak - floor <= len(offset_map) * (BYTES_PER_KEY + 1)


def test_a_batch_that_does_not_fit_is_refused_beforehand() -> None:
    offset_map = OffsetMap(100, max_bytes=10 * BYTES_PER_KEY)
    assert offset_map.has_room(9, 108)
    assert not offset_map.has_room(11, 109)
    assert not offset_map.has_room(1, 100 + 10 * BYTES_PER_KEY)


def test_a_batch_whose_offsets_are_lies_stays_whole_and_supersedes_what_is_older() -> None:
    offset_map = OffsetMap(0, max_bytes=1 << 30)
    for base_offset, zigzags in ((0, (0, 2)), (2, (3, 127)), (4, (0, 2))):
        value = None if base_offset == 2 else b"v"
        keys = (b"a", b"b") if base_offset < 4 else (b"b", b"c")
        batch = build_batch([RecordData(key, value, 0) for key in keys], base_offset=base_offset)
        header = parse_header(batch)
        body = bytearray(uncompressed_body(header, batch, 0))
        # length, attributes and timestamp take one byte each
        for place, zigzag in enumerate(zigzags):
            body[place * len(body) // 2 + 3] = zigzag
        offset_map.add(header, bytes(body))
    offset_map.settle()
    assert list(offset_map.fates) == [SUPERSEDED, SUPERSEDED, LIVE, LIVE, LIVE, LIVE]
