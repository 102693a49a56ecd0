"""The offset map without numpy gives the same results, and stays within its memory."""

import random
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.cleaner.fates import BYTES_PER_OFFSET
from headrace.storage.cleaner.offset_map import OffsetMap
from headrace.storage.cleaner.plain_offset_map import BYTES_PER_KEY, PlainOffsetMap
from headrace.storage.cleaner.spans import batch_of, survivors
from headrace.wire.batch import BatchHeader
from tests.unit.storage.cleaner.compaction import Table, opened, opened_batch, peak_memory

Pair = tuple[bytes | None, bytes | None]
Opened = tuple[BatchHeader, bytes]
keys = st.one_of(st.none(), st.sampled_from((b"a", b"b", b"\0", b"\0\0", b"", b"long" * 50)))
pairs = st.tuples(keys, st.sampled_from((None, b"", b"v")))


def with_gaps(header: BatchHeader, body: bytes, keeps: list[bool]) -> Opened:
    """Remove some records, like an earlier compaction."""
    sizes = PlainOffsetMap(0, max_bytes=0, random_bytes=bytes).judge([header], [body])[0].sizes
    kept = survivors(body, bytes(not keep for keep in keeps), sizes)
    return opened(batch_of(header, body, kept, delete_horizon_ms=None)) if kept else (header, body)


@given(
    st.lists(st.tuples(st.lists(pairs, min_size=1, max_size=8), st.integers(0, 3), st.data()), min_size=1, max_size=8),
    st.integers(0, 20),
    st.booleans(),
)
def test_both_maps_give_the_same_fates(
    contents: list[tuple[list[Pair], int, st.DataObject]], first_offset: int, malformed: bool
) -> None:
    batches, base = [], 0
    for content, gap, data in contents:
        base += gap
        header, body = opened_batch(content, base)
        keeps = data.draw(st.lists(st.booleans(), min_size=len(content), max_size=len(content)))
        header, body = with_gaps(header, body, keeps)
        if malformed and len(body) > 3:
            body = body[:3] + bytes([data.draw(st.integers(0, 127))]) + body[4:]
        batches.append((header, body))
        base += len(content)
    maps = [
        kind(first_offset, max_bytes=1 << 30, random_bytes=random.Random(1).randbytes)
        for kind in (OffsetMap, PlainOffsetMap)
    ]
    for item in maps:
        for header, body in batches:
            if header.last_offset >= first_offset:
                item.add(header, body)
        item.settle()
    fast, plain = maps
    assert (len(fast), fast.latest_offset, fast.is_empty) == (len(plain), plain.latest_offset, plain.is_empty)
    for header, body in batches:
        if header.base_offset >= first_offset:
            assert fast.fates_in(header) == plain.fates_in(header)
            assert fast.records_in(header) == plain.records_in(header)
        assert fast.judge([header], [body]) == plain.judge([header], [body])


def test_memory_per_key_is_within_the_estimate() -> None:
    # the table has just grown, and is as empty as it gets
    keys = 700
    offset_map = PlainOffsetMap(0, max_bytes=1 << 30, random_bytes=random.Random(1).randbytes)
    batches = [
        opened_batch([(b"%200d" % (base + place), b"v") for place in range(100)], base) for base in range(0, keys, 100)
    ]

    def fill() -> None:
        for item in batches:
            offset_map.add(*item)
        offset_map.settle()

    peak = peak_memory(fill)
    assert len(offset_map) == keys
    assert peak <= len(offset_map) * (BYTES_PER_KEY + BYTES_PER_OFFSET)


def test_batches_whose_bodies_do_not_match_their_headers_are_kept_whole() -> None:
    offset_map = PlainOffsetMap(0, max_bytes=1 << 30, random_bytes=bytes)
    for offset, size in enumerate((b"\xff", b"\x01", b"\x7e", b"\x02")):
        header, body = opened_batch([(b"key", b"value")], offset)
        offset_map.add(header, size + body[1:])
    assert list(offset_map.unreadable) == [0, 1, 2, 3]
    assert offset_map.latest_offset == 3


def test_a_log_is_compacted_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = []
    for name in ("with", "without"):
        if name == "without":
            monkeypatch.setitem(sys.modules, "headrace.storage.cleaner.offset_map", None)
        (tmp_path / name).mkdir()
        table, chance = Table(tmp_path / name), random.Random(3)
        for _ in range(60):
            table.put(*[(str(chance.randint(0, 20)), chance.choice((None, "v" * 20))) for _ in range(5)])
        table.compact()
        logs.append(table.content())
        table.close()
    assert logs[0] == logs[1]
    assert logs[0]
