"""Compare the logs of a partition's replicas byte for byte, whether Headrace or Kafka wrote them."""

import mmap
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from headrace.wire.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, parse_header


class LoggedBatch(NamedTuple):
    """A batch in a file, with all of its bytes."""

    header: BatchHeader
    data: bytes


class Compared(NamedTuple):
    """The number of batches and bytes that are equal on all replicas."""

    replicas: int
    batches: int
    size: int
    """Bytes of one replica."""

    def __add__(self, other: "Compared") -> "Compared":  # type: ignore[override]
        return Compared(self.replicas + other.replicas, self.batches + other.batches, self.size + other.size)


class UnequalLogsError(AssertionError):
    """The logs differ, or one of them is too short."""


def batches(directory: Path, *, first: int = 0, end: int | None = None) -> Iterator[LoggedBatch]:
    """Yield the whole batches of a partition's directory from the one with offset `first`, up to `end`.

    A broker may be appending: an incomplete last batch is left out.
    """
    for path in sorted(directory.glob("*.log")):
        with path.open("rb") as file:
            if not path.stat().st_size:
                continue
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as content:
                position = 0
                while len(content) - position >= HEADER_SIZE:
                    header = parse_header(content, position)
                    after = position + LOG_OVERHEAD + header.batch_length
                    if after > len(content) or (end is not None and header.base_offset >= end):
                        break
                    if header.last_offset >= first:
                        yield LoggedBatch(header, bytes(content[position:after]))
                    position = after


def compare(partition: str, directories: Mapping[str, Path], *, first: int, end: int) -> Compared:
    """Compare the batches from offset `first` to `end`, the high watermark, in directories named by their brokers.

    Raises UnequalLogsError.
    """
    names = list(directories)
    count = size = 0
    reached = first
    for found in zip_longest(*(batches(directory, first=first, end=end) for directory in directories.values())):
        if any(batch != found[0] for batch in found):
            described = "; ".join(f"{name}: {_described(batch)}" for name, batch in zip(names, found, strict=True))
            raise UnequalLogsError(f"{partition} differs after offset {reached} (high watermark {end}): {described}")
        batch = found[0]
        reached = batch.header.last_offset + 1
        count += 1
        size += len(batch.data)
    if reached < end:
        raise UnequalLogsError(f"{partition} ends at offset {reached} on {names}; the high watermark is {end}")
    return Compared(len(names), count, size)


def _described(batch: LoggedBatch | None) -> str:
    if batch is None:
        return "no batch"
    header = batch.header
    return (
        f"offsets {header.base_offset} to {header.last_offset}, leader epoch {header.partition_leader_epoch}, "
        f"{len(batch.data)} bytes, CRC {header.crc:#x}"
    )
