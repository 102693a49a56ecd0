"""Finds transaction markers in the batch headers of a log."""

from array import array
from collections.abc import Sequence
from itertools import islice
from typing import Final

from headrace.storage.log.producers.marker_counts import Range, Scanned
from headrace.storage.log.segment import Segment

MAX_HEADERS: Final = 20_000
"""Maximum number of batch headers per scan."""


def scan_markers(segments: Sequence[Segment], wanted: Range) -> Scanned:
    """Find the transaction markers in the range `wanted`; read at most `MAX_HEADERS` batch headers. Thread-safe.

    Raises KafkaError as `Segment.headers` does, CorruptIndexError for a damaged offset index, and OSError.
    """
    markers = array("q")
    at, left = wanted.start, MAX_HEADERS
    for index, segment in enumerate(segments):
        if index + 1 < len(segments) and segments[index + 1].base_offset <= at:
            continue
        if segment.base_offset >= wanted.end:
            break
        for _, header in islice(segment.headers(segment.index.lookup(at)), left):
            left -= 1
            if header.base_offset >= wanted.end:
                return Scanned(wanted.start, wanted.end, markers)
            if header.is_control and header.base_offset >= at:
                markers.append(header.base_offset)
            at = max(at, header.next_offset)
        if left == 0:
            return Scanned(wanted.start, min(at, wanted.end), markers)
    return Scanned(wanted.start, wanted.end, markers)
