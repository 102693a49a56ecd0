"""Keeps the state of the producers when their records are dropped."""

import errno
import logging
from collections.abc import Sequence
from typing import Final

from headrace.storage.files.atomic_file import sync_directory, sync_file
from headrace.storage.log.producers.producer_snapshot import EMPTY_SIZE
from headrace.storage.log.segment import Segment
from headrace.storage.log.segment_files import SNAPSHOT_SUFFIX, segment_file
from headrace.storage.log.state import LogState

_DISK_IS_FULL: Final = (errno.ENOSPC, errno.EDQUOT)

log = logging.getLogger(__name__)


def keep_producers(state: LogState, kept: Sequence[Segment]) -> None:
    """Make the state of the producers survive a crash after all segments but the `kept` ones are dropped.

    Raises OSError. If the disk is full, only the first of consecutive calls does: otherwise it would stay full.
    """
    write = state.producers_writer()
    if write is None:
        return
    paths = (segment_file(state.directory, segment.base_offset, SNAPSHOT_SUFFIX) for segment in kept)
    path = next((path for path in paths if path.exists()), None)
    try:
        if path is None:
            path = segment_file(state.directory, state.log_end_offset, SNAPSHOT_SUFFIX)
            write(state.log_end_offset)
        if path.stat().st_size > EMPTY_SIZE:
            sync_file(path)
            sync_directory(state.directory)
    except OSError as error:
        was_full, state.lacks_snapshot = state.lacks_snapshot, error.errno in _DISK_IS_FULL
        if not (was_full and state.lacks_snapshot):
            raise
        log.error(
            "%s has no usable producer snapshot: %s. If the broker is killed before the next attempt, it no longer"
            " detects repeated batches of producers whose records are deleted",
            state.topic_partition,
            error,
        )
    else:
        state.lacks_snapshot = False
