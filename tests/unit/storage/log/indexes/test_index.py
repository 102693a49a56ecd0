"""An index finds the last entry at or before a target, in its file or in its tail."""

from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.log.indexes.index import NO_TIMESTAMP, CorruptIndexError, OffsetIndex, TimeIndex
from tests.support.examples import examples

ascending = st.lists(st.integers(1, 50), max_size=3000).map(lambda steps: list(accumulate(steps)))


def offset_index(directory: Path, offsets: list[int], *, base: int = 1000, written: int = 0) -> OffsetIndex:
    index = OffsetIndex(directory / "x.index", base, size=0)
    index.clear()
    for place, offset in enumerate(offsets):
        index.append(base + offset, 10 + place * 7)
        if place + 1 == written:
            index.write_tail()
    return index


@settings(max_examples=examples(50))
@given(ascending, st.integers(0, 3000), st.lists(st.integers(-10, 80_000), min_size=1, max_size=20))
def test_a_lookup_finds_the_position_at_or_before_the_offset(
    tmp_path_factory: pytest.TempPathFactory, offsets: list[int], written: int, targets: list[int]
) -> None:
    index = offset_index(tmp_path_factory.mktemp("index"), offsets, written=written)
    for target in [*targets, *offsets[:5], *offsets[-5:]]:
        place = sum(1 for offset in offsets if offset <= target)
        assert index.lookup(1000 + target) == (10 + (place - 1) * 7 if place else 0)


@settings(max_examples=examples(50))
@given(ascending, st.integers(0, 3000), st.integers(-10, 80_000))
def test_truncation_drops_the_entries_from_the_offset_on(
    tmp_path_factory: pytest.TempPathFactory, offsets: list[int], written: int, target: int
) -> None:
    index = offset_index(tmp_path_factory.mktemp("index"), offsets, written=written)
    index.truncate(1000 + target)
    kept = [offset for offset in offsets if offset < target]
    assert [offset for offset, _ in index.pairs()] == kept
    index.append(1000 + 100_000, 5_000_000)
    index.write_tail()
    again = OffsetIndex(index.path, 1000, size=index.path.stat().st_size)
    assert list(again.pairs()) == list(index.pairs())
    assert again.last == (101_000, 5_000_000)


def test_the_time_index_takes_only_larger_timestamps(tmp_path: Path) -> None:
    index = TimeIndex(tmp_path / "x.timeindex", 50, size=0)
    assert (index.last, index.lookup(10)) == ((NO_TIMESTAMP, 50), 50)
    for timestamp, offset in [(NO_TIMESTAMP, 50), (100, 51), (100, 52), (90, 53), (200, 54)]:
        index.append(timestamp, offset)
    assert list(index.pairs()) == [(100, 1), (200, 4)]
    assert index.last == (200, 54)
    assert [index.lookup(timestamp) for timestamp in (0, 99, 100, 150, 200, 999)] == [50, 50, 51, 51, 54, 54]


def test_indexes_have_kafka_s_format(tmp_path: Path) -> None:
    index = offset_index(tmp_path, [5, 6], written=2)
    assert index.path.read_bytes() == bytes.fromhex("00000005 0000000a 00000006 00000011")
    times = TimeIndex(tmp_path / "x.timeindex", 1000, size=0)
    times.append(258, 1005)
    times.write_tail()
    assert times.path.read_bytes() == bytes.fromhex("0000000000000102 00000005")


def test_an_invalid_index_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.index"
    for content in ("00", "0000000500000005 0000000500000009", "0000000500000005 0000000000000000", "ffffffffffffffff"):
        path.write_bytes(bytes.fromhex(content))
        with pytest.raises(CorruptIndexError):
            pytest.fail(f"{content}: {OffsetIndex(path, 0, size=path.stat().st_size)}")
