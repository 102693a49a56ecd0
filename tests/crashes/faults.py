"""Mistakes that storage code could make: each must be found, or the search for them is worth nothing."""

from collections.abc import Callable

import pytest

from headrace.storage.dirs.log_dir import LogDir
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.files.log_file import LogFile
from headrace.storage.log import flusher, log, recovery
from headrace.storage.log.segment import Segment

Fault = Callable[[pytest.MonkeyPatch], None]


def _nothing(*_: object) -> None:
    """Instead of an fsync."""


def no_sync_of_records(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogFile, "sync", _nothing)


def no_sync_of_rolled_indexes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "sync_indexes", _nothing)


def no_sync_of_a_log_s_directory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log, "sync_directory", _nothing)
    patch.setattr(flusher, "sync_directory", _nothing)


def no_sync_after_segments_went(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "sync_directory", _nothing)


def no_checksums(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "batch_crc_ok", lambda *_: True)


def no_look_for_lost_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogDirs, "_is_gapless", lambda *_: False)


def truncations_trusted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogDirs, "save_bounds", _nothing)


def power_failures_taken_for_process_deaths(patch: pytest.MonkeyPatch) -> None:
    read = LogDir._noted_boot
    patch.setattr(LogDir, "_noted_boot", lambda self: None if read(self) is None else self._boot)


def recovery_noted_before_it_is_done(patch: pytest.MonkeyPatch) -> None:
    take_over = LogDir.take_over

    def hasty(self: LogDir, *, joins_others: bool = False) -> None:
        take_over(self, joins_others=joins_others)
        self.note_recovered()

    patch.setattr(LogDir, "take_over", hasty)


FAULTS: tuple[Fault, ...] = (
    no_sync_of_records,
    no_sync_of_rolled_indexes,
    no_sync_of_a_log_s_directory,
    no_checksums,
    no_look_for_lost_ends,
    truncations_trusted,
    power_failures_taken_for_process_deaths,
    recovery_noted_before_it_is_done,
)

RARELY_FOUND: tuple[Fault, ...] = (no_sync_after_segments_went,)
"""What takes some hundred seeds."""
