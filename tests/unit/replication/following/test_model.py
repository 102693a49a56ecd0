"""Replicas are equal below the high watermark, whatever happens, and planted faults are found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.replication.following import fetched_batches
from headrace.replication.following import partition as followed
from headrace.replication.following.fetcher import Fetcher
from headrace.replication.following.partition import FollowedPartition
from headrace.storage.log.leader_epochs import LeaderEpochs
from headrace.storage.log.log import Log
from headrace.wire.checksum import crc32c
from tests.unit.replication.following.model import play

STEPS: Final = 120
SEEDS: Final = 8
STEPS_PER_FAULT: Final = 60
SEEDS_PER_FAULT: Final = 40

RARE: Final = {
    "truncate_by_high_watermark": 13,
    "forget_producers_at_truncation": 4,
    "keep_an_epoch_without_batches": 6,
    "accept_out_of_order_batches": 4,
    "accept_damaged_batches": 16,
    "ignore_the_leaders_log_start": 5,
    "keep_what_diverges": 10,
}
"""The first seed to play, for faults that not every history reveals."""

Fault = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed < 2 else [pytest.mark.slow]) for seed in range(SEEDS)]
)
def test_replicas_are_equal_below_the_high_watermark(seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path / "model", STEPS)


def truncate_by_high_watermark(patch: pytest.MonkeyPatch) -> None:
    follow = Fetcher.follow

    def hasty(self: Fetcher, partitions: Any) -> None:
        for partition in partitions:
            partition.truncate_to(partition.high_watermark)
        follow(self, partitions)

    patch.setattr(Fetcher, "follow", hasty)


def forget_producers_at_truncation(patch: pytest.MonkeyPatch) -> None:
    def keep(self: FollowedPartition, *_: object) -> None:
        self.high_watermark = min(self.high_watermark, self.log_end_offset)

    patch.setattr(FollowedPartition, "_reload", keep)


def no_epoch_entry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderEpochs, "assign", lambda *_: None)


def keep_an_epoch_without_batches(patch: pytest.MonkeyPatch) -> None:
    truncate_to = Log.truncate_to

    def lazy(self: Log, offset: int) -> None:
        if offset < self.log_end_offset:
            truncate_to(self, offset)

    patch.setattr(Log, "truncate_to", lazy)


def accept_out_of_order_batches(patch: pytest.MonkeyPatch) -> None:
    runs_of = fetched_batches.runs_of
    patch.setattr(followed, "runs_of", lambda records, _, epoch: runs_of(records, 0, epoch))


def accept_damaged_batches(patch: pytest.MonkeyPatch) -> None:
    class Any32(int):
        __slots__ = ()

        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = int.__hash__

    patch.setattr(fetched_batches, "crc32c", lambda data: Any32(crc32c(data)))


def high_watermark_beyond_the_log(patch: pytest.MonkeyPatch) -> None:
    learn = FollowedPartition.learn

    def trusting(self: FollowedPartition, high_watermark: int, log_start_offset: int) -> None:
        learn(self, high_watermark, log_start_offset)
        self.high_watermark = high_watermark

    patch.setattr(FollowedPartition, "learn", trusting)


def ignore_markers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FollowedPartition, "_note_marker", lambda *_: None)


def ignore_the_leaders_log_start(patch: pytest.MonkeyPatch) -> None:
    learn = FollowedPartition.learn
    patch.setattr(FollowedPartition, "learn", lambda self, high_watermark, _: learn(self, high_watermark, 0))


def keep_what_diverges(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FollowedPartition, "truncate_where_diverging", lambda *_: 0)


FAULTS: Final[tuple[Fault, ...]] = (
    truncate_by_high_watermark,
    forget_producers_at_truncation,
    no_epoch_entry,
    keep_an_epoch_without_batches,
    accept_out_of_order_batches,
    accept_damaged_batches,
    high_watermark_beyond_the_log,
    ignore_markers,
    ignore_the_leaders_log_start,
    keep_what_diverges,
)


def test_planted_faults_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missed = []
    for fault in FAULTS:
        first = RARE.get(fault.__name__, 0)
        with monkeypatch.context() as patch:
            fault(patch)
            if not any(finds(seed, tmp_path / "model") for seed in range(first, first + SEEDS_PER_FAULT)):
                missed.append(fault.__name__)
    assert missed == []


def finds(seed: int, directory: Path) -> bool:
    try:
        play(seed, directory, STEPS_PER_FAULT)
    except AssertionError:
        return True
    return False
