"""The ranges of offsets of each partition in a table, and the gaps between them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The offsets of a partition in a table, from `first` to `last` without those in `gaps`."""

    topic: str
    topic_id: str
    partition: int
    first: int
    last: int
    rows: int
    duplicates: int
    """Number of rows that repeat the offset of another row."""
    gaps: tuple[range, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The offsets of a partition in a part of a table. `rows` exceeds the number of offsets if some repeat."""

    topic_id: str
    partition: int
    offsets: tuple[range, ...]
    rows: int


def merged(pieces: Iterable[Piece], topics: Mapping[str, str]) -> list[Present]:
    """Merge pieces by topic and partition. `topics` are names by topic id.

    A topic whose name is unknown, because it no longer exists, is named by its id.
    """

    def place(piece: Piece) -> tuple[str, str, int]:
        return topics.get(piece.topic_id, piece.topic_id), piece.topic_id, piece.partition

    return [_of_partition(*at, list(group)) for at, group in groupby(sorted(pieces, key=place), key=place)]


def _of_partition(topic: str, topic_id: str, partition: int, pieces: Sequence[Piece]) -> Present:
    ranges = sorted((offset for piece in pieces for offset in piece.offsets), key=lambda offsets: offsets.start)
    gaps: list[range] = []
    end = ranges[0].start
    distinct = 0
    for offsets in ranges:
        if offsets.start > end:
            gaps.append(range(end, offsets.start))
        distinct += max(0, offsets.stop - max(offsets.start, end))
        end = max(end, offsets.stop)
    rows = sum(piece.rows for piece in pieces)
    return Present(
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        first=ranges[0].start,
        last=end - 1,
        rows=rows,
        duplicates=rows - distinct,
        gaps=tuple(gaps),
    )
