"""Faults injected into the storage code, which the simulation must find."""

from collections.abc import Callable

import pytest

from headrace.replication.following.partition import FollowedPartition
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.dirs.log_dir import LogDir
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.files.log_file import LogFile
from headrace.storage.log import flusher, log, recovery, valid_batches
from headrace.storage.log.leader_epochs import LeaderEpochs
from headrace.storage.log.segment import Segment
from headrace.wire.batch import BatchHeader

Fault = Callable[[pytest.MonkeyPatch], None]


def _skip(*_: object) -> None: ...


def no_sync_of_records(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogFile, "sync", _skip)


def no_sync_of_rolled_indexes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "sync_indexes", _skip)


def no_sync_of_log_directories(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log, "sync_directory", _skip)
    patch.setattr(flusher, "sync_directory", _skip)


def no_sync_after_segments_are_deleted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "sync_directory", _skip)


def no_checksums(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(valid_batches, "batch_crc_ok", lambda *_: True)


def no_search_for_lost_tails(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogDirs, "_is_gapless", lambda *_: False)


def no_saved_bounds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogDirs, "save_bounds", _skip)


def power_loss_mistaken_for_process_death(patch: pytest.MonkeyPatch) -> None:
    read = LogDir._noted_boot
    patch.setattr(LogDir, "_noted_boot", lambda self: None if read(self) is None else self._boot)


def recovery_noted_too_early(patch: pytest.MonkeyPatch) -> None:
    take_over = LogDir.take_over

    def hasty(self: LogDir, *, joins_others: bool = False) -> None:
        take_over(self, joins_others=joins_others)
        self.note_recovered()

    patch.setattr(LogDir, "take_over", hasty)


def producer_snapshots_outlive_a_truncation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log, "remove_stray_snapshots", _skip)


def epochs_of_truncated_batches_survive(patch: pytest.MonkeyPatch) -> None:
    def append_only(self: LeaderEpochs, header: BatchHeader) -> None:
        if header.partition_leader_epoch > self.latest:
            self.assign(header.partition_leader_epoch, header.base_offset)

    patch.setattr(LeaderEpochs, "recover", append_only)


def epochs_survive_a_truncation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderEpochs, "truncate_from_end", _skip)


def log_end_saved_as_high_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ReplicaManager,
        "_high_watermarks",
        lambda self: {partition.topic_partition: partition.log_end_offset for partition in self.hosted()},
    )


def producers_survive_a_truncation(patch: pytest.MonkeyPatch) -> None:
    def forgetful(self: FollowedPartition, *_: object) -> None:
        self.high_watermark = max(self.log_start_offset, min(self.high_watermark, self.log_end_offset))

    patch.setattr(FollowedPartition, "_reload", forgetful)


def fetched_batches_do_not_change_producers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FollowedPartition, "_note", _skip)


FAULTS: tuple[Fault, ...] = (
    no_sync_of_records,
    no_sync_of_rolled_indexes,
    no_sync_of_log_directories,
    no_checksums,
    no_search_for_lost_tails,
    no_saved_bounds,
    producer_snapshots_outlive_a_truncation,
    power_loss_mistaken_for_process_death,
    recovery_noted_too_early,
    epochs_of_truncated_batches_survive,
    epochs_survive_a_truncation,
    log_end_saved_as_high_watermark,
    producers_survive_a_truncation,
    fetched_batches_do_not_change_producers,
)

RARELY_FOUND: tuple[Fault, ...] = (no_sync_after_segments_are_deleted,)
"""Found only with hundreds of seeds."""
