"""Batches with a valid checksum and unreadable records are kept unchanged, and do not stop compaction."""

import gzip
import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.wire import batch as rb
from headrace.wire.compression import Codec
from headrace.wire.records import RecordData, build_batch
from tests.unit.storage.cleaner.compaction import Table
from tests.unit.storage.logs import NOW


def batch_round(body: bytes, codec: Codec, offset: int, count: int = 3) -> bytes:
    header = rb.parse_header(build_batch([RecordData(b"k", b"v", NOW)] * 3, base_offset=offset, leader_epoch=0))
    header = header._replace(
        attributes=codec,
        batch_length=rb.HEADER_SIZE - rb.LOG_OVERHEAD + len(body),
        record_count=count,
        last_offset_delta=2,
    )
    out = bytearray(rb.pack_header(header) + body)
    rb.seal(out)
    return bytes(out)


BAD: dict[str, Callable[[int], bytes]] = {
    "garbage": lambda offset: batch_round(random.Random(1).randbytes(300), Codec.NONE, offset),
    "packed garbage": lambda offset: batch_round(gzip.compress(random.Random(1).randbytes(300)), Codec.GZIP, offset),
    "garbage instead of gzip": lambda offset: batch_round(b"nothing" * 40, Codec.GZIP, offset),
    "garbage instead of zstd": lambda offset: batch_round(b"nothing" * 40, Codec.ZSTD, offset),
    "unpacks to too much": lambda offset: batch_round(gzip.compress(bytes(1_100_000)), Codec.GZIP, offset),
    "an unknown codec": lambda offset: batch_round(b"nothing" * 40, 7, offset),  # type: ignore[arg-type]  # no such codec
    "counts very many": lambda offset: batch_round(gzip.compress(bytes(300)), Codec.GZIP, offset, 2**31 - 1),
}


def test_the_rest_of_the_log_is_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("headrace.storage.cleaner.compaction._MAX_UNCOMPRESSED", 1_000_000)
    caplog.set_level(logging.WARNING)
    table, bad = Table(tmp_path), []
    for kind, make in BAD.items():
        for number in range(2):
            table.put(("a", f"{number}"), (kind, "x" * 100))
        offset = table.log.log_end_offset
        bad.append((kind, offset, make(offset)))
        table.append(bad[-1][2])
    table.put(("a", "last"))
    for again in range(2):
        table.log.roll(NOW)
        assert table.compact(from_start=again > 0)
        assert table.cleaner.failing == {}
        found = {
            header.base_offset: segment.file.pread(header.size, position)
            for segment in table.log.segments.ordered
            for position, header in segment.headers()
        }
        for kind, offset, content in bad:
            assert found.pop(offset, None) == content, kind
        # the last records of the key of every kind, of a and of d
        assert len(found) <= len(BAD) + 1 + again
        table.put(("d", "one more"))
    for kind, offset, _ in bad:
        assert sum(f"offset {offset} " in record.message for record in caplog.records) == 1, kind
    table.close()


def test_later_records_are_found_by_timestamp(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.put(("a", "before"), timestamp=NOW - 10)
    for make in BAD.values():
        table.append(make(table.log.log_end_offset))
    end = table.log.log_end_offset
    table.put(("a", "behind"), timestamp=NOW + 5)
    assert table.log.reader.offset_for_timestamp(NOW - 10) == (NOW - 10, 0, 0)
    assert table.log.reader.offset_for_timestamp(NOW) == (NOW + 5, end, 0)
    assert table.log.reader.max_timestamp() == (NOW + 5, end)
    table.close()
