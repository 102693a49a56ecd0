"""The cleaner process uses little memory for any log, and handles batches that no client writes."""

from pathlib import Path
from struct import pack

import pytest

from headrace.errors import KafkaError
from headrace.storage.cleaner.compaction import Cleaner
from headrace.storage.cleaner.job import CleaningJob, SourceSegment
from headrace.storage.log.indexes.txn_index import AbortedTransaction, TransactionIndex
from headrace.wire.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, parse_header, seal
from headrace.wire.compression import Codec
from headrace.wire.control import Marker, encode_marker
from headrace.wire.records import RecordData, assemble, build_batch, iter_records
from tests.unit.storage.cleaner.compaction import peak_memory
from tests.unit.storage.logs import NOW

PRODUCER = 7
LIMIT = 12_000_000
"""Bytes; without the limits, these logs take twice as much memory."""


def _batch(offset: int, *records: tuple[bytes, bytes | None], codec: Codec = Codec.NONE, **options: int) -> bytes:
    data = [RecordData(key, value, NOW) for key, value in records]
    return build_batch(data, base_offset=offset, codec=codec, leader_epoch=0, **options)


def _assembled(
    offset: int, body: bytes, *, records: int = 1, timestamp: int = NOW, producer_id: int = -1, attributes: int = 0
) -> bytes:
    return assemble(
        body,
        record_count=records,
        last_offset_delta=records - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        base_offset=offset,
        codec=Codec.NONE,
        level=None,
        leader_epoch=0,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        attributes=attributes,
    )


def _aborted(offset: int, body: bytes) -> bytes:
    return _assembled(offset, body, producer_id=PRODUCER, attributes=TRANSACTIONAL_FLAG)


def _marker(offset: int, kind: int, records: int = 1) -> bytes:
    key, value = encode_marker(Marker(kind), 5)
    flags = TRANSACTIONAL_FLAG | CONTROL_FLAG
    return _batch(offset, *[(key, value)] * records, producer_id=PRODUCER, producer_epoch=0, attributes=flags)


def _cleaner(directory: Path, batches: list[bytes], *, first_dirty: int = 0) -> Cleaner:
    path = directory / f"{0:020d}.log"
    path.write_bytes(b"".join(batches))
    size = path.stat().st_size
    return Cleaner(
        CleaningJob(
            directory=directory,
            segments=[SourceSegment(0, size, 0, 0)],
            transaction_segments=[0],
            first_dirty_offset=first_dirty,
            first_uncleanable_offset=parse_header(batches[-1]).next_offset,
            producers={},
            now_ms=NOW,
            delete_retention_ms=1000,
            segment_bytes=1 << 30,
            segment_index_bytes=10_000_000,
            index_interval_bytes=4096,
            map_bytes=10_000_000,
            io_buffer_bytes=262_144,
            bytes_per_second=1e15,
        )
    )


def _note_aborted(directory: Path, first: int, last: int) -> None:
    TransactionIndex(directory / f"{0:020d}.txnindex").append(AbortedTransaction(PRODUCER, first, last, last + 1))


def _cleaned(cleaner: Cleaner, directory: Path) -> bytes:
    cleaner.build_map()
    for group in cleaner.groups():
        cleaner.clean(group)
    return (directory / f"{0:020d}.log.cleaned").read_bytes()


def test_small_batches_do_not_keep_their_read_buffers(tmp_path: Path) -> None:
    batches = []
    for offset in range(0, 190, 2):
        batches += [_batch(offset, (b"%d" % offset, b"v")), _aborted(offset + 1, bytes(250_000))]
    batches.append(_marker(190, 0))
    _note_aborted(tmp_path, 1, 190)
    cleaner = _cleaner(tmp_path, batches)
    assert peak_memory(cleaner.build_map) < LIMIT
    assert len(cleaner.map) == 95


def test_highly_compressed_clean_batches_are_processed_a_few_at_a_time(tmp_path: Path) -> None:
    batches = [_batch(offset, (b"%d" % offset, bytes(2_000_000)), codec=Codec.ZSTD) for offset in range(12)]
    cleaner = _cleaner(tmp_path, [*batches, _batch(12, (b"0", b"new"))], first_dirty=12)
    cleaner.build_map()
    assert peak_memory(lambda: cleaner.clean(cleaner.groups()[0])) < LIMIT


@pytest.mark.slow
def test_many_small_batches_are_written_before_they_fill_a_megabyte(tmp_path: Path) -> None:
    batches = [_batch(0, (b"%d" % key, b"")) for key in range(100)]
    cleaner = _cleaner(tmp_path, [pack(">q", offset) + batches[offset % 100][8:] for offset in range(20_000)])
    # without a limit on the number of pending batches: 16 MB
    assert peak_memory(cleaner.build_map) < 12_000_000


def test_aborted_batches_are_not_decompressed(tmp_path: Path) -> None:
    batches = [_batch(0, (b"a", b"1")), _aborted(1, b"\x02garbage"), _marker(2, 0), _batch(3, (b"a", b"2"))]
    _note_aborted(tmp_path, 1, 2)
    left = _cleaned(_cleaner(tmp_path, batches, first_dirty=1), tmp_path)
    assert [(record.offset, record.value) for record in iter_records(left) if record.key == b"a"] == [(3, b"2")]


def test_a_control_batch_with_several_records_is_kept_unchanged(tmp_path: Path) -> None:
    # the log does not contain the marker's transaction
    marker = _marker(1, 1, records=2)
    left = _cleaned(_cleaner(tmp_path, [_batch(0, (b"a", b"1")), marker, _batch(3, (b"a", b"2"))]), tmp_path)
    assert marker in left


@pytest.mark.parametrize("inconsistency", ["overlaps", "ends before it begins"])
def test_batches_with_inconsistent_offsets_are_damage(tmp_path: Path, inconsistency: str) -> None:
    second = bytearray(_batch(1 if inconsistency == "overlaps" else 2, (b"b", b"1")))
    if inconsistency != "overlaps":
        second[23:27] = pack(">i", -1)
        seal(second)
    cleaner = _cleaner(tmp_path, [_batch(0, (b"a", b"1"), (b"b", b"1")), bytes(second)])
    with pytest.raises(KafkaError, match="no valid batch at byte"):
        cleaner.build_map()


def test_timestamps_that_exceed_64_bits_are_limited(tmp_path: Path) -> None:
    far = 2**62
    data = [
        RecordData(key, value, timestamp) for key, value, timestamp in ((b"a", b"1", far), (b"b", None, 3 * far - 1))
    ]
    body = build_batch([item._replace(timestamp=item.timestamp - far) for item in data])[61:]
    malformed = _assembled(0, body, records=2, timestamp=far)
    left = _cleaned(_cleaner(tmp_path, [malformed, _batch(2, (b"a", b"2"))]), tmp_path)
    assert [record.key for record in iter_records(left)] == [b"b", b"a"]
