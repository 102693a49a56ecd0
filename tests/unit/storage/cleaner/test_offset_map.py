"""The offset map stays within its memory, and finds the newest record of every key."""

import random

import numpy as np
import pytest

from headrace.storage.cleaner import offset_map as offset_map_module
from headrace.storage.cleaner import plain_offset_map
from headrace.storage.cleaner.columns import Bytes, Integers
from headrace.storage.cleaner.fates import BYTES_PER_OFFSET, LIVE, SUPERSEDED, TOMBSTONE
from headrace.storage.cleaner.key_digests import Digests, KeyDigests
from headrace.storage.cleaner.offset_map import BYTES_PER_KEY, OffsetMap
from headrace.storage.cleaner.plain_offset_map import PlainOffsetMap
from headrace.wire.batch import BatchHeader
from tests.unit.storage.cleaner.compaction import opened_batch, peak_memory

Map = OffsetMap | PlainOffsetMap
Kind = type[OffsetMap] | type[PlainOffsetMap]


def _map(first_offset: int = 0, max_bytes: float = 1 << 30, kind: Kind = OffsetMap) -> Map:
    return kind(first_offset, max_bytes=max_bytes, random_bytes=random.Random(1).randbytes)


def _fates(offset_map: Map, *batches: tuple[BatchHeader, bytes]) -> list[int]:
    return [fate for header, _ in batches for fate in offset_map.fates_in(header)]


@pytest.mark.slow
def test_memory_per_key_is_within_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_map_module, "_MIN_MERGE", 6_250)
    monkeypatch.setattr(offset_map_module, "_CHUNK_BYTES", 50_000)
    offset_map = _map()
    batches = [
        opened_batch([(b"%200d" % (base + place), b"v") for place in range(100)], base)
        for base in range(0, 50_000, 100)
    ]

    def fill() -> None:
        for header, body in batches:
            offset_map.add(header, body)
        offset_map.settle()

    peak = peak_memory(fill)
    assert len(offset_map) == 50_000
    # temporary memory does not depend on the number of keys
    assert peak - 500_000 <= len(offset_map) * (BYTES_PER_KEY + BYTES_PER_OFFSET)


@pytest.mark.parametrize(
    ("kind", "bytes_per_key"), [(OffsetMap, BYTES_PER_KEY), (PlainOffsetMap, plain_offset_map.BYTES_PER_KEY)]
)
def test_has_room_refuses_a_batch_that_does_not_fit(kind: Kind, bytes_per_key: int) -> None:
    offset_map = _map(100, 10 * bytes_per_key, kind)
    assert offset_map.has_room(9, 108)
    assert not offset_map.has_room(11, 109)
    assert not offset_map.has_room(1, 100 + 10 * bytes_per_key // BYTES_PER_OFFSET)


def test_known_keys_use_no_additional_memory() -> None:
    offset_map = _map(0, 40 * (BYTES_PER_KEY + BYTES_PER_OFFSET))
    for base_offset in range(0, 100, 10):
        assert offset_map.has_room(10, base_offset + 9)
        offset_map.add(*opened_batch([(b"%d" % place, b"v") for place in range(10)], base_offset))
    assert len(offset_map) == 10
    assert offset_map.is_empty is False


@pytest.mark.parametrize(("few", "chunk"), [(1, 1), (7, 1000), (1000, 1_000_000)])
def test_the_last_record_of_each_key_is_the_newest(few: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_map_module, "_MIN_MERGE", few)
    monkeypatch.setattr(offset_map_module, "_CHUNK_BYTES", chunk)
    offset_map, chance, base = _map(50), random.Random(7), 50
    newest: dict[bytes, tuple[int, int]] = {}
    batches = []
    for _ in range(40):
        pairs: list[tuple[bytes | None, bytes | None]] = []
        for offset in range(base, base + chance.randint(1, 20)):
            size = chance.choice((0, 3, 8, 16, 64, 65, 200))
            key = chance.choice((None, b"\0" * chance.randint(0, 9), b"%d" % chance.randint(0, 30) * (size // 2)))
            value = chance.choice((None, b"v"))
            pairs.append((key, value))
            if key is not None:
                newest[key] = (offset, TOMBSTONE if value is None else LIVE)
        batches.append(opened_batch(pairs, base))
        offset_map.add(*batches[-1])
        base += len(pairs)
    offset_map.settle()
    expected = [SUPERSEDED] * (base - 50)
    for offset, fate in newest.values():
        expected[offset - 50] = fate
    assert _fates(offset_map, *batches) == expected
    assert len(offset_map) == len(newest)


@pytest.mark.parametrize("kind", [OffsetMap, PlainOffsetMap])
def test_records_of_the_clean_part_are_judged_by_the_map(kind: Kind) -> None:
    long = b"long" * 50
    before = [
        opened_batch([(b"a", b"old"), (None, b"v"), (b"c", b"v"), (b"d", None)], 0),
        # this batch ends within the offsets of the map
        opened_batch([(b"b", b"old"), (long, b"old"), (long + b"er", b"v"), (b"c", None)], 4),
    ]
    offset_map = _map(7, kind=kind)
    offset_map.add(*before[1])
    offset_map.add(*opened_batch([(b"a", b"v"), (b"b", None), (long, b"v")], 8))
    offset_map.settle()
    judged = offset_map.judge([header for header, _ in before], [body for _, body in before])
    assert list(judged[0].fates) == [SUPERSEDED, SUPERSEDED, SUPERSEDED, TOMBSTONE]
    assert list(judged[1].fates) == [SUPERSEDED, SUPERSEDED, LIVE, TOMBSTONE]
    assert [sum(item.sizes) for item in judged] == [len(body) for _, body in before]


def test_a_batch_with_invalid_offsets_is_kept_whole_and_supersedes_older_records() -> None:
    offset_map = _map()
    batches = []
    for base_offset, zigzags in ((0, (0, 2)), (2, (3, 127)), (4, (0, 2))):
        value = None if base_offset == 2 else b"v"
        keys = (b"a", b"b") if base_offset < 4 else (b"b", b"c")
        header, valid_body = opened_batch([(key, value) for key in keys], base_offset)
        body = bytearray(valid_body)
        # length, attributes and timestamp take one byte each
        for place, zigzag in enumerate(zigzags):
            body[place * len(body) // 2 + 3] = zigzag
        batches.append((header, bytes(body)))
        offset_map.add(*batches[-1])
    offset_map.settle()
    assert _fates(offset_map, *batches) == [SUPERSEDED, SUPERSEDED, LIVE, LIVE, LIVE, LIVE]
    later = _map(6)
    later.add(*opened_batch([(b"a", b"v"), (b"b", b"v")], 6))
    later.settle()
    judged = later.judge([header for header, _ in batches[:2]], [body for _, body in batches[:2]])
    assert [list(item.fates) for item in judged] == [[SUPERSEDED, SUPERSEDED], [LIVE, LIVE]]


class EqualHighHalves(KeyDigests):
    def of(self, content: Bytes, starts: Integers, sizes: Integers) -> Digests:
        digests = super().of(content, starts, sizes)
        return Digests(np.zeros_like(digests.high), digests.low)


def test_keys_with_the_same_half_digest_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_map_module, "KeyDigests", EqualHighHalves)
    offset_map = _map(40)
    batches = [opened_batch([(b"%d" % (offset % 7), b"v")], offset) for offset in range(40, 80)]
    for batch in batches:
        offset_map.add(*batch)
    offset_map.settle()
    assert _fates(offset_map, *batches) == [SUPERSEDED] * 33 + [LIVE] * 7
    header, body = opened_batch([(b"%d" % number, b"v") for number in range(9)], 0)
    judged = offset_map.judge([header], [body])
    assert list(judged[0].fates) == [SUPERSEDED] * 7 + [LIVE] * 2
