"""Batches with a valid checksum and unreadable records are kept unchanged, and do not stop compaction."""

import gzip
import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.wire import batch as rb
from headrace.wire.compression import Codec
from headrace.wire.records import RecordData, batch_headers, build_batch
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
    "unpacks to too much": lambda offset: batch_round(gzip.compress(bytes(5_000_000)), Codec.GZIP, offset),
    "an unknown codec": lambda offset: batch_round(b"nothing" * 40, 7, offset),  # type: ignore[arg-type]  # no such codec
    "counts very many": lambda offset: batch_round(gzip.compress(bytes(300)), Codec.GZIP, offset, 2**31 - 1),
}


@pytest.mark.parametrize("kind", BAD)
def test_the_rest_of_the_log_is_cleaned(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("headrace.storage.cleaner.compaction._MAX_UNCOMPRESSED", 1_000_000)
    caplog.set_level(logging.WARNING)
    table = Table(tmp_path)
    for number in range(30):
        table.put(("a", f"{number}"), ("b", "x" * 100))
    bad_offset = table.log.log_end_offset
    bad = BAD[kind](bad_offset)
    table.append(bad)
    for number in range(30):
        table.put(("a", f"later {number}"), ("c", "x" * 100))
    for again in range(2):
        table.log.roll(NOW)
        assert table.compact(from_start=again > 0)
        assert table.cleaner.failing == {}
        files = [segment.path.read_bytes() for segment in table.log.segments.ordered]
        found = {
            header.base_offset: data[position : position + header.size]
            for data in files
            for position, header in batch_headers(data)
        }
        assert found[bad_offset] == bad
        # the last records of keys b, a and c, and the unreadable batch
        assert len([offset for offset in found if offset < bad_offset]) == 1
        assert len([offset for offset in found if offset > bad_offset]) <= 2 + again
        table.put(("d", "one more"))
    assert sum(f"offset {bad_offset} " in record.message for record in caplog.records) == 1
    table.close()


@pytest.mark.parametrize("kind", BAD)
def test_later_records_are_found_by_timestamp(kind: str, tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.put(("a", "before"), timestamp=NOW - 10)
    table.append(BAD[kind](1))
    table.put(("a", "behind"), timestamp=NOW + 5)
    assert table.log.reader.offset_for_timestamp(NOW - 10) == (NOW - 10, 0, 0)
    assert table.log.reader.offset_for_timestamp(NOW) == (NOW + 5, 4, 0)
    assert table.log.reader.max_timestamp() == (NOW + 5, 4)
    table.close()
