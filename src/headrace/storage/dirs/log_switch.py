"""A log that has been copied to another log directory goes on there; a crash at any step leaves one good copy.

The steps: the old directory is renamed to go (`switch`), which from then on says that the copy is whole; once that is
on the disk (`LogFlusher.sync_switch`), the copy gets the partition's name (`finish`). A start that finds a copy beside
the original drops the copy, and one that finds it alone takes it up (`found_partitions`).
"""

from math import inf

from headrace.storage.dirs.log_dir import LogDir
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.dirs.log_move import LAST_BYTES, LogMove, MoveAbortedError, MoveFailedError
from headrace.storage.dirs.partition_dir import replaced_name


def prepare(log_dirs: LogDirs, move: LogMove, high_watermark: int) -> None:
    """Let the checkpoints of the target know the log; waits for the disk. Raises MoveFailedError."""
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
    """Go on with the copy, in the thread that appends; False where too much is still to be copied for that.

    Raises MoveAbortedError, MoveFailedError; OSError.
    """
    moved = move.log
    if move.aborted or not log_dirs.is_here(moved):
        raise MoveAbortedError
    plan = move.plan()
    if plan.stale or plan.size > LAST_BYTES:
        return False
    # what is safe in the old place, or is being made so right now, must be safe in the new one
    sync = moved.flusher.recovery_point > move.synced_offset or moved.flusher.is_flushing
    move.copy(plan, lambda: inf, sync=sync)
    old = log_dirs.place(moved)
    move.replaced = old.parent.path / replaced_name(moved.topic_partition, move.identity)
    try:
        old.path.rename(move.replaced)
    except OSError as error:
        raise MoveFailedError(old.parent.path, error) from error
    log_dirs.set_place(moved, move.target, move.future)
    moved.switch_to(move.future, old.parent.path)
    return True


def finish(log_dirs: LogDirs, move: LogMove, now_ms: int) -> None:
    """Give the copy the partition's name, in the thread that appends; to be followed by `LogDirs.sync_names`.

    Raises MoveFailedError: the log is in use under the name of its copy, which the next start puts right.
    """
    moved = move.log
    log_dirs.doom(move.replaced, now_ms + moved.config.file_delete_delay_ms)
    log_dirs.owned.at(move.replaced.parent).forget(moved.topic_partition)
    if not log_dirs.is_here(moved):
        return  # deleted meanwhile, under the name that it had
    path = move.target / str(moved.topic_partition)
    try:
        move.future.rename(path)
    except OSError as error:
        raise MoveFailedError(move.target, error) from error
    moved.move(path)
    log_dirs.set_place(moved, move.target, path)
