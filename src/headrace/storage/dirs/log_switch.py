"""Switches a log to its copy in another log directory; a crash at any step leaves one good copy.

First the old directory is renamed to `-delete`, which marks the copy as complete (`switch`). When that is on disk
(`LogFlusher.sync_switch`), the copy gets the partition's name (`finish`). At a start, a copy next to its original is
removed, and a copy next to its renamed original is used (`found_partitions`).
"""

from math import inf
from pathlib import Path

from headrace.storage.dirs.log_dir import LogDir
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.dirs.log_move import LAST_BYTES, LogMove, MoveAbortedError, MoveFailedError
from headrace.storage.dirs.partition_dir import replaced_name
from headrace.storage.files.atomic_file import read_file, replace_file


def prepare(log_dirs: LogDirs, move: LogMove, high_watermark: int) -> None:
    """Add the log to the checkpoints of the target; blocks on the disk. Raises MoveFailedError."""
    moved = move.log
    topic_partition = moved.topic_partition
    cleaned_upto = log_dirs.cleaned_upto(topic_partition)

    def note(target: LogDir) -> None:
        target.recovery_points[topic_partition] = min(move.synced_offset, moved.flusher.recovery_point_to_save)
        target.log_start_offsets[topic_partition] = moved.log_start_offset
        target.high_watermarks[topic_partition] = high_watermark
        if cleaned_upto is not None:
            target.cleaner_offsets[topic_partition] = cleaned_upto

    try:
        log_dirs.update_checkpoints(log_dirs.owned.at(move.target), note)
    except OSError as error:
        raise MoveFailedError(move.target, error) from error


def switch(log_dirs: LogDirs, move: LogMove) -> bool:
    """Copy what is still missing, and make the copy the partition's log; return False if too much is missing.

    Call this in the thread that appends.

    Raises MoveAbortedError, MoveFailedError and OSError.
    """
    moved = move.log
    if move.abort_reason or not log_dirs.is_here(moved):
        raise MoveAbortedError(move.abort_reason or "the partition was deleted")
    plan = move.plan()
    if plan.stale or plan.size > LAST_BYTES:
        return False
    # records that are flushed in the old directory, or being flushed, must be on disk in the new one
    sync = moved.flusher.recovery_point > move.synced_offset or moved.flusher.is_flushing
    move.copy(plan, lambda: inf, sync=sync)
    index = moved.segments.active.txn_index
    with index.moving() as entries:
        _complete(move, move.future / index.path.name, entries)
        old = log_dirs.place(moved)
        move.replaced = old.parent.path / replaced_name(moved.topic_partition, move.identity)
        try:
            old.path.rename(move.replaced)
        except OSError as error:
            raise MoveFailedError(old.parent.path, error) from error
        log_dirs.set_place(moved, move.target, move.future)
        moved.switch_to(move.future, old.parent.path)
    return True


def _complete(move: LogMove, copy: Path, entries: bytes) -> None:
    """Replace the copy of the transaction index if it lacks entries.

    The old disk may have had no room for them, or a flush in another thread has written them after the plan was made.
    Raises MoveFailedError.
    """
    try:
        if entries != (read_file(copy) if copy.exists() else b""):
            replace_file(copy, entries)
    except OSError as error:
        raise MoveFailedError(move.target, error) from error


def finish(log_dirs: LogDirs, move: LogMove, now_ms: int) -> None:
    """Give the copy the partition's name, in the thread that appends; call `LogDirs.sync_names` next.

    Raises MoveFailedError; the log then stays in use under the name of its copy until the next start.
    """
    moved = move.log
    log_dirs.doom(move.replaced, now_ms + moved.config.file_delete_delay_ms)
    log_dirs.owned.at(move.replaced.parent).forget(moved.topic_partition)
    if not log_dirs.is_here(moved):
        return  # deleted during the move
    path = move.target / str(moved.topic_partition)
    try:
        move.future.rename(path)
    except OSError as error:
        raise MoveFailedError(move.target, error) from error
    moved.move(path)
    log_dirs.set_place(moved, move.target, path)
