"""Logs with known content."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.storage.files.log_file import FileSlice
from headrace.storage.log.config import LogConfig
from headrace.storage.log.log import Log
from headrace.types import TopicPartition
from headrace.wire.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchHeader, parse_header
from headrace.wire.compression import Codec
from headrace.wire.control import Marker, encode_marker
from headrace.wire.records import Record, RecordData, batch_headers, build_batch, iter_records

NOW = 1_700_000_000_000
TP = TopicPartition("orders-eu", 3)
SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=200, segment_index_bytes=4096)
"""About ten appends per segment."""


def batch(
    base_offset: int,
    count: int = 1,
    *,
    timestamp: int = NOW,
    step: int = 1,
    value: bytes = b"v" * 60,
    codec: Codec = Codec.NONE,
    epoch: int = 0,
) -> bytes:
    """Return a batch of `count` records, `step` ms apart."""
    records = [RecordData(b"k", value, timestamp + place * step) for place in range(count)]
    return build_batch(records, base_offset=base_offset, codec=codec, leader_epoch=epoch)


def append(log: Log, count: int = 1, *, now_ms: int = NOW, **options: Any) -> BatchHeader:
    """Append one batch at the end of `log`."""
    return append_batch(log, batch(log.log_end_offset, count, **options), now_ms=now_ms)


def append_batch(log: Log, data: bytes, *, now_ms: int = NOW) -> BatchHeader:
    header = parse_header(data)
    log.append(
        (data[:16], memoryview(data)[16:]),
        len(data),
        base_offset=header.base_offset,
        first_last_offset=header.last_offset,
        last_offset=header.last_offset,
        max_timestamp=header.max_timestamp,
        offset_of_max_timestamp=header.last_offset,
        leader_epoch=header.partition_leader_epoch,
        now_ms=now_ms,
    )
    return header


def put(log: Log, producer_id: int, *, marker: Marker | None = None, count: int = 1, size: int = 10) -> BatchHeader:
    """Append a batch of a transaction, or the marker that ends it."""
    if marker is None:
        records = [RecordData(b"k", b"v" * size, NOW)] * count
    else:
        records = [RecordData(*encode_marker(marker, 1), NOW)]
    data = build_batch(
        records,
        base_offset=log.log_end_offset,
        leader_epoch=0,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0 if marker is None else -1,
        attributes=TRANSACTIONAL_FLAG | (0 if marker is None else CONTROL_FLAG),
    )
    return append_batch(log, data)


def open_log(
    directory: Path,
    config: LogConfig = SMALL,
    *,
    clean: bool = False,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    **options: Any,
) -> Log:
    directory.mkdir(exist_ok=True)
    return Log.open(
        directory,
        TP,
        config,
        recovery_point=recovery_point,
        clean_shutdown=clean,
        log_start_offset=log_start_offset,
        now_ms=NOW,
        **options,
    )


def restarted(log: Log, config: LogConfig = SMALL, **options: Any) -> Iterator[Log]:
    """Yield the log as it is opened after the process was killed, and then after a clean shutdown."""
    killed = log.directory.with_name(f"{log.directory.name} killed")
    shutil.copytree(log.directory, killed)
    yield open_log(killed, config, **options)
    log.close()
    yield open_log(log.directory, config, clean=True, **options)


def read_all(log: Log, offset: int | None = None, max_bytes: int = 1 << 20) -> list[Record]:
    """Read all records from `offset` on, as a consumer would."""
    position = log.log_start_offset if offset is None else offset
    records: list[Record] = []
    while (part := log.reader.read(position, max_bytes, upto_offset=log.log_end_offset)) is not None:
        fetched = [record for record in iter_records(part.read()) if record.offset >= position]
        assert fetched, f"a read at {position} returned no record"
        records += fetched
        position = whole_end(part)
    return records


def whole_end(part: FileSlice) -> int:
    """Return the offset after the last whole batch."""
    return [header.next_offset for _, header in batch_headers(part.read())][-1]


def offsets(records: list[Record]) -> list[int]:
    return [record.offset for record in records]


def index_content(log: Log) -> list[tuple[int, list[tuple[int, int]], list[tuple[int, int]]]]:
    return [
        (segment.base_offset, list(segment.index.pairs()), list(segment.time_index.pairs()))
        for segment in log.segments.ordered
    ]
