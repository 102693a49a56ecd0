"""Read the metadata log of a KRaft quorum from a directory written by Kafka.

It is the log of a partition. A snapshot (`<end offset>-<epoch>.checkpoint`, KIP-630) may replace its beginning.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.dirs.owned_dirs import OwnedDirs
from headrace.storage.dirs.partition_dir import KRAFT_METADATA
from headrace.storage.log.producers.producer_snapshot import snapshots
from headrace.storage.log.segment_files import LOG_SUFFIX, offset_of
from headrace.wire.batch import HEADER_SIZE, MAGIC_V2, BatchHeader, batch_crc_ok, parse_header
from headrace.wire.records import records_of, uncompressed_body

DIRECTORY: Final = f"{KRAFT_METADATA}-0"
_SNAPSHOT: Final = re.compile(r"(\d{20})-\d{10}\.checkpoint", re.ASCII)
_SNAPSHOT_FOOTER: Final = b"\x00\x00\x00\x04"


class MetadataLog(NamedTuple):
    """A metadata log: `records` are the values, in order.

    After a crash, the last file may end with an incomplete batch, of `torn_bytes` bytes.
    """

    path: Path
    records: list[bytes]
    end_offset: int
    torn_bytes: int


def find_metadata_log(owned: OwnedDirs, elsewhere: Path | None = None) -> MetadataLog | None:
    """Return the metadata log in one of the directories, or in `elsewhere`.

    Return None if there is no such log, or if it was adopted before. Raises KafkaError if it is damaged or cannot be
    read.
    """
    if any(directory.was_adopted for directory in owned.working):
        return None
    is_clean = all(directory.clean_shutdown for directory in owned.working)
    for path in (*owned.paths, *([elsewhere] if elsewhere else [])):
        try:
            found = read_metadata_log(path, clean_shutdown=is_clean)
        except OSError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, f"cannot read {path}: {error}") from error
        if found is not None:
            return found
    return None


def read_metadata_log(log_directory: Path, *, clean_shutdown: bool) -> MetadataLog | None:
    """Return the metadata log, or None if the log directory has none.

    An incomplete last batch is tolerated after a crash. Raises OSError if a file cannot be read, and KafkaError if a
    part is missing (kafka_storage_error) or damaged.
    """
    directory = log_directory / DIRECTORY
    if not directory.is_dir():
        return None
    names = sorted(path.name for path in directory.iterdir())
    records: list[bytes] = []
    next_offset = 0
    taken = [(int(match[1]), name) for name in names if (match := _SNAPSHOT.fullmatch(name))]
    if taken:
        next_offset, name = max(taken)
        records += _snapshot_records(directory / name)
    segments = [(offset_of(name) or 0, name) for name in names if name.endswith(LOG_SUFFIX)]
    torn = 0
    for place, (base_offset, name) in enumerate(segments):
        path = directory / name
        if torn:
            raise _damaged(path, f"follows {segments[place - 1][1]}, which ends within a batch")
        if base_offset > next_offset:
            raise _damaged(path, f"begins with offset {base_offset}, but offset {next_offset} is missing")
        data = path.read_bytes()
        end = 0
        for position, header in _batches(path, data):
            end = position + header.size
            if header.last_offset < next_offset:
                continue
            if header.base_offset > next_offset:
                raise _damaged(path, f"has offset {header.base_offset} at byte {position}, not {next_offset}")
            next_offset = header.next_offset
            records += _values(header, data, position)
        torn = len(data) - end
    newest = max(snapshots(directory), default=0)
    if not segments or newest > next_offset or (torn and clean_shutdown):
        raise _damaged(directory, f"ends at offset {next_offset}, but was longer before")
    return MetadataLog(directory, records, next_offset, torn)


def _batches(path: Path, data: bytes) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and header of all complete batches. Raises KafkaError if one before the last is damaged."""
    position = 0
    while position + HEADER_SIZE <= len(data):
        header = parse_header(data, position)
        end = position + header.size
        if end > len(data) and header.batch_length > 0:
            return
        if header.batch_length <= 0 or header.magic != MAGIC_V2 or not batch_crc_ok(data, position, header.size):
            if end >= len(data) or not any(data[position:]):
                return
            raise _damaged(path, f"has no valid batch at byte {position}")
        yield position, header
        position = end


def _values(header: BatchHeader, data: bytes, position: int) -> Iterator[bytes]:
    if not header.is_control:
        for record in records_of(header, uncompressed_body(header, data, position)):
            if record.value is not None:
                yield record.value


def _snapshot_records(path: Path) -> list[bytes]:
    data = path.read_bytes()
    records: list[bytes] = []
    end = 0
    is_whole = False
    for position, header in _batches(path, data):
        end = position + header.size
        records += _values(header, data, position)
        if header.is_control:
            keys = [record.key for record in records_of(header, uncompressed_body(header, data, position))]
            is_whole = _SNAPSHOT_FOOTER in keys
    if not is_whole or end != len(data):
        raise _damaged(path, f"is an incomplete snapshot, of {len(data)} bytes")
    return records


def _damaged(path: Path, what: str) -> KafkaError:
    return KafkaError(
        ErrorCode.kafka_storage_error,
        f"the metadata log of the Kafka cluster is damaged: {path} {what}. Nothing was changed. Restore the directory "
        "from a backup, or start Kafka on it, wait until it has fetched the log from its quorum, and stop it cleanly",
    )
