"""Loads the segments of a log from its directory; repairs interrupted work, damaged indexes and torn tails."""

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from stat import S_ISREG
from typing import Final, NamedTuple

from headrace.errors import KafkaError
from headrace.storage.files.atomic_file import UnusableFileError, sync_directory
from headrace.storage.files.disk_failures import indivisible
from headrace.storage.files.sparse_copy import copy_file
from headrace.storage.log.config import LogConfig
from headrace.storage.log.indexes.index import CorruptIndexError
from headrace.storage.log.leader_epochs import LeaderEpochs
from headrace.storage.log.producers.txn_recovery import restore_lost_indexes
from headrace.storage.log.segment import MAX_RELATIVE_OFFSET, Segment, damage_error
from headrace.storage.log.segment_files import (
    CLEANED_SUFFIX,
    DAMAGED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_of,
    segment_file,
    suffix_of,
)
from headrace.storage.log.valid_batches import valid_batches
from headrace.wire.batch import HEADER_SIZE, TRANSACTIONAL_FLAG

_LOST: Final = "the records in between are lost; restore them from a replica or a backup"

_NO_LIMIT: Final = 2**63

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """The arguments of `load_segments`; see `Log.open`."""

    directory: Path
    config: LogConfig
    now_ms: int
    recovery_point: int
    clean_shutdown: bool
    kernel_survived: bool
    log_start_offset: int
    gapless: bool
    """True if every segment after the recovery point began at the end offset of the previous one."""


class Rebuilt(NamedTuple):
    """The number of truncated bytes, and the offset after the segment's last batch."""

    cut: int
    end_offset: int


def load_segments(loading: Loading, epochs: LeaderEpochs) -> tuple[list[Segment], int]:
    """Return the segments in order, at least one, and the log end offset.

    Raises OSError, and KafkaError(unsupported_for_message_format) for message formats v0 and v1.
    """
    finish_interrupted_swaps(loading.directory)
    segments, bad_indexes = _open_segments(loading)
    segments = _without_failed_rolls(loading.directory, segments)
    unflushed = [] if loading.clean_shutdown else _from_offset(segments, loading.recovery_point)
    gapless = loading.gapless and not loading.kernel_survived
    if unflushed and loading.kernel_survived:
        # all writes of the process are in the page cache: only the last batch can be incomplete, and only the last
        # index entries can be missing
        last = unflushed[-1]
        resumed = last.base_offset in bad_indexes or resume(last, loading.config, epochs)
        unflushed = [] if resumed else [last]
    restore_lost_indexes(loading.directory, segments, bad_indexes - {segment.base_offset for segment in unflushed})
    for place, segment in enumerate(segments):
        if segment not in unflushed and segment.base_offset not in bad_indexes:
            continue
        following = segments[place + 1 :]
        limit = following[0].base_offset if following else _NO_LIMIT
        if segment not in unflushed and following:
            _rebuild_indexes(segment, loading.config, limit)
            continue
        was_cut, segment.is_cut = segment.is_cut, False
        log.info("%s: checking %d bytes and rebuilding the indexes", segment.path, segment.size)
        cut, end_offset = rebuild(
            segment, loading.config, epochs, limit, following=following, copies=segment not in unflushed
        )
        lost = following and gapless and segment in unflushed and end_offset < limit
        if (lost or (was_cut and following)) and not cut:
            log.error(
                "%s ends at offset %d, but the next segment begins at %d: %s", segment.path, end_offset, limit, _LOST
            )
        if lost and not cut:
            _set_aside(loading.directory, following, "follows a segment whose end was lost")
        if segment not in unflushed:
            segment.sync_indexes()  # the next start will not check it again
            sync_directory(loading.directory)
        if cut or lost:
            del segments[place + 1 :]
            break
    if segments:
        end_offset = _end_of(segments[-1], loading, epochs)
        if end_offset < loading.recovery_point:
            path, point = segments[-1].path, loading.recovery_point
            log.error("%s ends at offset %d, but was flushed up to offset %d: %s", path, end_offset, point, _LOST)
        if end_offset >= loading.log_start_offset:
            return segments, end_offset
        reason = f"ends at offset {end_offset}, before log start offset {loading.log_start_offset}"
        _set_aside(loading.directory, segments, reason)
        epochs.clear()
    start = loading.log_start_offset
    return [Segment.create(loading.directory, start, now_ms=loading.now_ms, config=loading.config)], start


def _end_of(segment: Segment, loading: Loading, epochs: LeaderEpochs) -> int:
    try:
        return segment.read_end()
    except (KafkaError, CorruptIndexError) as error:
        # no crash has torn the file, so data after the damage may be valid: keep a copy of the file
        log.error(
            "%s was damaged after a clean shutdown: %s. Checking it and rebuilding its indexes", segment.path, error
        )
        rebuild(segment, loading.config, epochs, _NO_LIMIT, copies=True)
        return segment.read_end()


def _rebuild_indexes(segment: Segment, config: LogConfig, limit: int) -> None:
    """Rebuild the indexes of a flushed segment that is not the last one, without truncating it.

    A crash cannot have damaged it. If it is damaged, readers get an error there; later valid batches stay readable.
    """
    if segment.is_cut:
        # keep the index: it shows at every start that the end is lost
        log.error(
            "%s has only %d bytes, but its indexes refer to later positions: the last records between offsets %d and %d"
            " are lost. Consumers get CORRUPT_MESSAGE there; restore the file from a replica or a backup",
            segment.path,
            segment.size,
            segment.base_offset,
            limit - 1,
        )
        return
    log.info("%s: rebuilding the indexes", segment.path)
    segment.clear_indexes()
    limit = min(limit, segment.base_offset + MAX_RELATIVE_OFFSET + 1)
    end, next_offset = 0, segment.base_offset
    for position, header in valid_batches(segment, limit):
        segment.index_batch(position, header, config.index_interval_bytes)
        end, next_offset = position + header.size, header.next_offset
    if end < segment.size:
        log.error("%s; the rest of the file is unchanged", damage_error(segment.path, end))
        with suppress(KafkaError):  # up to the next invalid batch
            for position, header in segment.headers(end):
                if next_offset <= header.base_offset < header.next_offset <= limit:
                    segment.index_batch(position, header, config.index_interval_bytes)
                    next_offset = header.next_offset
    segment.seal()
    # the next start will not check it again
    segment.sync_indexes()
    sync_directory(segment.directory)


def _set_aside(directory: Path, segments: Sequence[Segment], reason: str) -> None:
    """Remove segments from the end of a log, but keep their log files as `.damaged` files, which are never loaded."""
    for segment in reversed(segments):
        if segment.size:
            aside = _name_aside(segment)
            segment.path.rename(aside)
            log.error("%s %s: it was removed, and its %d bytes are in %s", segment.path, reason, segment.size, aside)
    _remove_segments(directory, segments)


def _name_aside(segment: Segment) -> Path:
    """Return an unused path that ends with `.damaged` for the log file."""
    for place in count():
        aside = segment.path.with_name(segment.path.name + (f".{place}" if place else "") + DAMAGED_SUFFIX)
        if not aside.exists():
            break
    return aside


def _without_failed_rolls(directory: Path, segments: Sequence[Segment]) -> list[Segment]:
    """Remove segments without batches whose base offset is within the segment before them; return the others.

    Earlier versions left such files when a roll failed halfway, and appended more records to the older segment.
    """
    kept: list[Segment] = []
    for segment in segments:
        if kept and _has_no_batch(segment) and _ends_after(kept[-1], segment.base_offset):
            log.warning(
                "Removing %s, which has no records: a failed roll left it, and %s contains its base offset",
                segment.path,
                kept[-1].path,
            )
            _remove_segments(directory, [segment])
        else:
            kept.append(segment)
    return kept


def _has_no_batch(segment: Segment) -> bool:
    """Return True if the file is empty, or filled with zeros by an incomplete preallocation."""
    if not segment.size:
        return True
    # this test is cheap, and sealed segments have index entries
    has_entries = segment.index.count or segment.max_timestamp >= 0
    return not has_entries and not any(segment.file.pread(HEADER_SIZE, 0))


def _ends_after(segment: Segment, offset: int) -> bool:
    """Return True if the segment has a valid batch at or after `offset`."""
    start = segment.index.last[1] if segment.index.last else 0
    with suppress(KafkaError):  # readers refuse old formats
        return any(header.last_offset >= offset for _, header in valid_batches(segment, _NO_LIMIT, start))
    return False


def _from_offset(segments: list[Segment], offset: int) -> list[Segment]:
    """Return the segment that contains `offset` and those after it."""
    before = [segment for segment in segments if segment.base_offset <= offset]
    return segments[max(0, len(before) - 1) :]


def _open_segments(loading: Loading) -> tuple[list[Segment], set[int]]:
    """Return every segment with a log file, and the base offsets of those whose indexes are unusable."""
    sizes: dict[int, dict[str, int]] = {}
    with os.scandir(loading.directory) as entries:
        for entry in entries:
            base_offset = offset_of(entry.name)
            suffix = suffix_of(entry.name)
            if base_offset is not None and suffix in SEGMENT_SUFFIXES:
                status = entry.stat()
                if not S_ISREG(status.st_mode):
                    raise UnusableFileError(Path(entry.path), "is not a regular file")
                sizes.setdefault(base_offset, {})[suffix] = status.st_size
    segments, bad_indexes = [], set()
    level = logging.WARNING if loading.clean_shutdown else logging.INFO
    for base_offset, found in sorted(sizes.items()):
        if LOG_SUFFIX not in found:
            for suffix in found:
                path = segment_file(loading.directory, base_offset, suffix)
                log.warning("Removing %s, because its segment has no log file", path)
                path.unlink()
            continue
        size = found[LOG_SUFFIX]
        try:
            if INDEX_SUFFIX not in found or TIME_INDEX_SUFFIX not in found:
                missing = TIME_INDEX_SUFFIX if INDEX_SUFFIX in found else INDEX_SUFFIX
                raise CorruptIndexError(f"{segment_file(loading.directory, base_offset, missing)} is missing")
            segment = Segment(
                loading.directory,
                base_offset,
                size=size,
                index_size=found[INDEX_SUFFIX],
                time_index_size=found[TIME_INDEX_SUFFIX],
                now_ms=loading.now_ms,
            )
            if (segment.index.last and segment.index.last[1] >= size) or (not size and segment.max_timestamp >= 0):
                log.log(level, "%s refers to positions after the end of its log file", segment.index.path)
                segment.is_cut = True
                bad_indexes.add(base_offset)
        except CorruptIndexError as error:
            log.log(level, "%s; rebuilding it", error)
            bad_indexes.add(base_offset)
            segment = Segment(
                loading.directory, base_offset, size=size, index_size=0, time_index_size=0, now_ms=loading.now_ms
            )
        if TXN_INDEX_SUFFIX in found and not segment.txn_index.is_sound(found[TXN_INDEX_SUFFIX], base_offset):
            segment.txn_index.is_suspect = True
        segments.append(segment)
    return segments, bad_indexes


def resume(segment: Segment, config: LogConfig, epochs: LeaderEpochs) -> bool:
    """Recover the last segment from its last index entry on; return False if no batch begins there.

    This suffices if the process died but the kernel did not. Raises OSError, and KafkaError as `valid_batches` does.
    """
    if not (segment.size or segment.index.count or segment.time_index.count or segment.txn_index.exists):
        return True  # a shortcut, because most of thousands of partitions may be empty
    start = segment.index.last[1] if segment.index.last else 0
    if start and next(valid_batches(segment, _NO_LIMIT, start), None) is None:
        return False
    rebuild(segment, config, epochs, _NO_LIMIT, start)
    return True


def rebuild(
    segment: Segment,
    config: LogConfig,
    epochs: LeaderEpochs,
    limit: int,
    start: int = 0,
    *,
    following: Sequence[Segment] = (),
    copies: bool = False,
) -> Rebuilt:
    """Check the batches from byte `start` on, cut the segment before the first invalid one, and rebuild its indexes.

    `limit` is the next segment's base offset; `following` segments are set aside if this one is torn. With `copies`,
    copy the file before cutting it. Raises OSError, and KafkaError as `valid_batches` does.
    """
    if not start:
        segment.clear_indexes()
    end = start
    end_offset = segment.base_offset
    for position, header in valid_batches(segment, limit, start):
        segment.index_batch(position, header, config.index_interval_bytes)
        epochs.recover(header)
        if header.attributes & TRANSACTIONAL_FLAG:
            segment.txn_index.is_suspect = True
        end = position + header.size
        end_offset = header.next_offset
    torn = segment.size - end
    if torn:
        log.warning(
            "%s: no valid batch at byte %d, offset %d; truncating %d bytes", segment.path, end, end_offset, torn
        )
        # before the cut: after a crash between the two, the next recovery must find this segment torn again
        _set_aside(segment.directory, following, "follows a torn segment")
        if copies:
            aside = _name_aside(segment)
            copy_file(segment.path, aside)
            log.error(
                "Copied %s to %s before truncating it; delete the copy when you no longer need it", segment.path, aside
            )
        segment.cut(end)
        segment.file.sync()  # a power failure must not bring the old data back after new batches
    segment.txn_index.truncate(end_offset)
    segment.seal()
    return Rebuilt(torn, end_offset)


def drop_segments(directory: Path, segments: Sequence[Segment]) -> list[Path]:
    """Rename the files of segments from the end of a log to `.deleted`, sync the directory, and return the new names.

    Rename the last one first, so that a crash leaves no gap. The removal of large files may take long; it can wait,
    because a start never loads them. Raises OSError.
    """
    renamed = []
    for segment in reversed(segments):
        renamed += segment.mark_deleted()
        segment_file(directory, segment.base_offset, SNAPSHOT_SUFFIX).unlink(missing_ok=True)
    if segments:
        sync_directory(directory)
    return renamed


def _remove_segments(directory: Path, segments: Sequence[Segment]) -> None:
    for path in drop_segments(directory, segments):
        path.unlink()


def finish_interrupted_swaps(directory: Path) -> None:
    """After a crash, remove `.deleted` and `.cleaned` files and put `.swap` files in place.

    A `.swap` file at or after a `.cleaned` one belongs to an unfinished split of a segment, and is removed too.
    """
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries]
    deleted = [name for name in names if name.endswith(DELETED_SUFFIX)]
    cleaned = [name for name in names if name.endswith(CLEANED_SUFFIX)]
    swaps = {name: offset for name in names if name.endswith(SWAP_SUFFIX) and (offset := offset_of(name)) is not None}
    first_cleaned = min((offset for name in cleaned if (offset := offset_of(name)) is not None), default=_NO_LIMIT)
    unfinished = [name for name, offset in swaps.items() if offset >= first_cleaned]
    # the `.cleaned` files last: if this start is interrupted, they show the next one which `.swap` files are unfinished
    for name in (*deleted, *unfinished, *cleaned):
        (directory / name).unlink()
        swaps.pop(name, None)
    if not swaps:
        return
    complete = _without_damaged(directory, list(swaps))
    start, end = _swapped_range(directory, complete)
    for name in names:
        offset = offset_of(name)
        if offset is not None and start <= offset < end and suffix_of(name) in SEGMENT_SUFFIXES:
            log.info("Removing %s, which was compacted into a .swap file", directory / name)
            (directory / name).unlink(missing_ok=True)
    # the log file first: while it is a .swap file, a restart would remove new files without that suffix as old ones
    for name in sorted(complete, key=lambda name: not name.endswith(LOG_SUFFIX + SWAP_SUFFIX)):
        target = directory / name.removesuffix(SWAP_SUFFIX)
        if target.exists():  # an index whose compacted log file is gone, and that does not match the original one
            (directory / name).unlink()
        else:
            (directory / name).rename(target)


def remove_unfinished_swaps(directory: Path) -> None:
    """Remove the files of compacted segments, log files last. Raises HalfDoneError."""
    names = [path.name for path in directory.iterdir() if path.name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))]
    with indivisible(f"The removal of compacted files from {directory}"):
        for name in names:
            if name.endswith(LOG_SUFFIX + SWAP_SUFFIX) and (offset := offset_of(name)) is not None:
                _swap_segment(directory, offset).remove()
        for name in sorted(names, key=lambda name: LOG_SUFFIX in name):
            (directory / name).unlink(missing_ok=True)


def _without_damaged(directory: Path, swaps: list[str]) -> list[str]:
    """Set aside damaged `.swap` files whose original segments still exist, and return the other names."""
    kept = list(swaps)
    for name in swaps:
        base_offset = offset_of(name)
        if base_offset is None or not name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            continue
        segment = _swap_segment(directory, base_offset)
        end = 0
        for position, header in valid_batches(segment, _NO_LIMIT):
            end = position + header.size
        if end == segment.size or not segment_file(directory, base_offset, LOG_SUFFIX).exists():
            continue
        aside = _name_aside(segment)
        log.error("%s is damaged at byte %d: renamed to %s; its source segments stay in use", name, end, aside)
        segment.path.rename(aside)
        for other in [other for other in kept if offset_of(other) == base_offset]:
            kept.remove(other)
            (directory / other).unlink(missing_ok=True)
    return kept


def _swap_segment(directory: Path, base_offset: int) -> Segment:
    path = segment_file(directory, base_offset, LOG_SUFFIX + SWAP_SUFFIX)
    size = path.stat().st_size if path.exists() else 0
    return Segment(directory, base_offset, size=size, index_size=0, time_index_size=0, now_ms=0, suffix=SWAP_SUFFIX)


def _swapped_range(directory: Path, swaps: list[str]) -> tuple[int, int]:
    """Return the offsets `[start, end)` that the `.swap` files replace."""
    start, end = _NO_LIMIT, -1
    for name in swaps:
        base_offset = offset_of(name)
        if base_offset is None or not name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            continue
        # an empty .swap file also replaces the segment with its base offset
        start, end = min(start, base_offset), max(end, base_offset + 1)
        for _, header in valid_batches(_swap_segment(directory, base_offset), _NO_LIMIT):
            end = max(end, header.next_offset)
    return start, end
