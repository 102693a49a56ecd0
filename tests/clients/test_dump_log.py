"""Kafka's DumpLogSegments finds no errors in the files of `headrace.storage`."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.indexes.txn_index import AbortedTransaction
from headrace.storage.log.log import Log
from headrace.storage.log.producers.producer_snapshot import ProducerEntry, write_snapshot
from headrace.storage.log.segment import Segment
from headrace.types import TopicPartition
from headrace.wire.compression import Codec
from tests.support.kafka_tools import DUMP_LOG, shared_tools
from tests.unit.storage.cleaner.compaction import Table
from tests.unit.storage.logs import NOW, SMALL, append, open_log

COMPLAINTS: Final = ("Mismatches in", "Non-consecutive", "Found timestamp", "Found out of order", "not found", "rror")

pytestmark = pytest.mark.java


def dump(directory: Path, *options: str, suffixes: tuple[str, ...] = (".log", ".index", ".timeindex")) -> str:
    """Run the tool on all files with the suffixes and return its output."""
    files = ",".join(str(path) for path in sorted(directory.iterdir()) if path.suffix in suffixes)
    result = shared_tools().run(DUMP_LOG, "--files", files, *options)
    assert result.status == 0, f"{result.printed}\n{result.errors}"
    assert "isvalid: false" not in result.printed
    # the tool prints this for the first record of every segment that does not begin at 0
    complaints = re.sub(
        r"^Non-consecutive offsets in .*\n  -1 is followed by .*\n", "", result.errors, flags=re.MULTILINE
    )
    for complaint in COMPLAINTS:
        assert complaint not in complaints, complaints
    return result.printed


def fill(log: Log) -> None:
    """Append several segments: batches between index entries, all codecs, timestamps out of order."""
    for number in range(150):
        append(
            log,
            1 + number % 5,
            timestamp=NOW + (number * 37) % 400 + number,
            step=number % 3,
            codec=list(Codec)[number % 5],
            epoch=number // 50,
        )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    dirs = LogDirs.open([tmp_path], broker_id=0)
    fill(dirs.create(TopicPartition("dumped", 0), UUID(int=1), replace(SMALL, segment_bytes=6000), now_ms=NOW))
    dirs.close({})
    return tmp_path / "dumped-0"


def entries(log: Log) -> tuple[int, int]:
    return sum(segment.index.count for segment in log.segments.ordered), sum(
        segment.time_index.count for segment in log.segments.ordered
    )


def dumped_entries(text: str) -> tuple[int, int]:
    return len(re.findall(r"^offset: \d+ position: ", text, re.MULTILINE)), len(
        re.findall(r"^timestamp: \d+ offset: ", text, re.MULTILINE)
    )


def test_records_and_index_entries_are_valid(directory: Path) -> None:
    log = open_log(directory, clean=True)
    text = dump(directory, "--deep-iteration", "--print-data-log")
    assert len(log.segments.ordered) > 2
    assert text.count("isvalid: true") == 150
    assert text.count("| offset: ") == log.log_end_offset
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        assert f"compresscodec: {codec}" in text
    assert dumped_entries(text) == entries(log)
    assert min(entries(log)) > 10
    text = dump(directory, "--index-sanity-check", suffixes=(".index", ".timeindex"))
    assert text.count("passed sanity check") == 2 * len(log.segments.ordered)


def test_rebuilt_indexes_are_valid(directory: Path) -> None:
    for path in [*directory.glob("*.index"), *directory.glob("*.timeindex")]:
        path.unlink()
    last = max(directory.glob("*.log"))
    last.write_bytes(last.read_bytes()[:-5])
    log = open_log(directory)
    text = dump(directory, "--deep-iteration")
    assert text.count("isvalid: true") == 149
    assert dumped_entries(text) == entries(log)


def test_compacted_segments_are_valid(tmp_path: Path) -> None:
    table = Table(tmp_path)
    for number in range(120):
        key = f"key {number * 7 % 9}"
        table.put((key, "v" * 30), (f"{number}", "w" * 30), (key, None), ("x", None), codec=list(Codec)[number % 5])
    last = table.put(("x", "1"), producer_id=9, producer_epoch=0, base_sequence=0)
    table.producers = [ProducerEntry(9, 0, 0, last.last_offset, 0, NOW, -1, -1)]
    table.put(("x", "2"))
    table.log.roll(NOW)
    table.compact()
    table.put(("active", "1"))
    table.reopen()
    assert {header.record_count for header in table.headers()} == {0, 1, 2}
    text = dump(table.log.directory, "--deep-iteration", "--print-data-log")
    assert "deleteHorizonMs: OptionalLong[" in text
    assert text.count("isvalid: true") == len(table.headers())
    assert text.count("| offset: ") == len(table.records())
    assert dumped_entries(text) == entries(table.log)
    text = dump(table.log.directory, "--index-sanity-check", suffixes=(".index", ".timeindex"))
    assert text.count("passed sanity check") + text.count("is empty") == 2 * len(table.log.segments.ordered)


def test_the_tool_detects_damage(directory: Path) -> None:
    path = min(directory.glob("*.timeindex"))
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)
    with pytest.raises(AssertionError, match="Found timestamp mismatch"):
        dump(directory)


def test_snapshots_and_aborted_transactions_are_read(tmp_path: Path) -> None:
    write_snapshot(tmp_path, 0, [ProducerEntry(4000, 3, 17, 250, 9, NOW, -1, -1).packed()])
    segment = Segment.create(tmp_path, 0, now_ms=NOW, config=SMALL)
    segment.txn_index.append(AbortedTransaction(4000, 5, 20, 21))
    text = dump(tmp_path, suffixes=(".snapshot", ".txnindex"))
    assert "producerId: 4000 producerEpoch: 3" in text
    assert "producerId: 4000 firstOffset: 5 lastOffset: 20 lastStableOffset: 21" in text
