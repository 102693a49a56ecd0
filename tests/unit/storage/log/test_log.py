import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.log.leader_epochs import LeaderEpochs
from headrace.storage.log.log import Log
from headrace.storage.log.timestamps import timestamp_at
from headrace.wire.compression import Codec
from headrace.wire.records import batch_headers
from tests.support.examples import examples
from tests.unit.storage.failing_calls import refuse
from tests.unit.storage.logs import (
    NOW,
    SMALL,
    append,
    append_batch,
    batch,
    index_content,
    offsets,
    open_log,
    read_all,
    whole_end,
)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return open_log(tmp_path / "log")


def test_an_empty_log_starts_and_ends_at_offset_0(log: Log) -> None:
    assert (log.log_start_offset, log.log_end_offset, log.segments.size) == (0, 0, 0)
    assert log.reader.read(0, 1000, upto_offset=0) is None
    assert log.reader.max_timestamp() is None
    assert log.reader.offset_for_timestamp(0) is None


def test_a_read_never_passes_the_upper_offset_even_inside_a_batch(log: Log) -> None:
    for _ in range(3):
        append(log, 5)
    for upper in (10, 12):
        part = log.reader.read(0, 1 << 20, upto_offset=upper)
        assert part is not None
        assert whole_end(part) == 10
    assert log.reader.read(10, 1 << 20, upto_offset=12) is None


def test_a_read_is_cut_at_its_byte_limit_after_one_whole_batch_if_requested(log: Log) -> None:
    size = append(log, 5).size
    append(log, 5)
    for limit in (10, size + 7):
        part = log.reader.read(0, limit, upto_offset=10)
        assert part is not None
        assert part.size == max(size, limit)
    assert log.reader.read(0, 10, upto_offset=10, min_one_batch=False) is None


def test_an_offset_outside_the_log_is_out_of_range(log: Log) -> None:
    append(log, 2)
    for offset in (-1, 3):
        reason = f"offset {offset} of orders-eu-3 is out of range: the log starts at offset 0 and ends at offset 2"
        with pytest.raises(KafkaError, match=reason) as raised:
            log.reader.read(offset, 100, upto_offset=2)
        assert raised.value.code == ErrorCode.offset_out_of_range


def open_files(directory: Path) -> list[Path]:
    """Return the files below `directory` that this process has open."""
    linked = (Path("/proc/self/fd") / entry for entry in os.listdir("/proc/self/fd"))  # noqa: PTH208
    return [path.readlink() for path in linked if path.is_file() and path.readlink().is_relative_to(directory)]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="/proc/self/fd needs Linux")
def test_dropping_the_log_closes_its_files(tmp_path: Path) -> None:
    before = open_files(tmp_path)
    log = open_log(tmp_path / "log")
    append(log, 2)
    part = log.reader.read(0, 100, upto_offset=2)
    del log, part
    assert before == open_files(tmp_path) == []


class TestRolling:
    def test_a_segment_that_would_grow_over_its_size_is_rolled(self, log: Log) -> None:
        size = append(log).size
        for _ in range(2000 // size):
            append(log)
        assert [item.base_offset for item in log.segments.ordered] == [0, 2000 // size]
        assert log.segments.active_base_offset == 2000 // size
        append(log, value=b"v" * 3000)  # larger than a segment
        append(log)
        assert [item.base_offset for item in log.segments.ordered] == [0, *range(2000 // size, 2000 // size + 3)]

    @pytest.mark.parametrize("jitter_ms", [0, 900])
    def test_a_record_segment_ms_newer_than_the_first_starts_a_new_segment(self, log: Log, jitter_ms: int) -> None:
        log.configure(replace(SMALL, segment_ms=1000, segment_jitter_ms=jitter_ms))
        append(log, timestamp=NOW)
        append(log, timestamp=NOW + 1000 - jitter_ms)
        assert len(log.segments.ordered) == 1
        append(log, timestamp=NOW + 1001)
        assert [item.base_offset for item in log.segments.ordered] == [0, 2]

    def test_without_timestamps_the_age_of_the_segment_counts(self, log: Log) -> None:
        log.configure(replace(SMALL, segment_ms=1000))
        append(log, timestamp=-1, now_ms=NOW)
        append(log, timestamp=-1, now_ms=NOW + 1001)
        assert len(log.segments.ordered) == 2

    def test_a_full_index_rolls_the_segment(self, tmp_path: Path) -> None:
        log = open_log(
            tmp_path / "log", replace(SMALL, segment_bytes=1 << 20, index_interval_bytes=0, segment_index_bytes=5 * 12)
        )
        for place in range(12):
            append(log, timestamp=NOW + place)
        assert len(log.segments.ordered) > 1
        assert all(item.time_index.count == 4 for item in log.segments.ordered[:-1])

    def test_an_offset_too_far_from_the_base_rolls_the_segment(self, log: Log) -> None:
        append(log)
        far = 2**31 + 5
        append_batch(log, batch(far))
        assert [item.base_offset for item in log.segments.ordered] == [0, far]
        assert offsets(read_all(log)) == [0, far]

    def test_a_rolled_log_continues_at_its_end_and_an_empty_one_is_unchanged(self, log: Log) -> None:
        assert log.roll(NOW) is log.segments.active
        append(log, 4)
        log.roll(NOW)
        append(log, 4)
        assert [item.base_offset for item in log.segments.ordered] == [0, 4]
        assert offsets(read_all(log)) == list(range(8))

    def test_preallocated_space_is_freed_when_the_segment_is_rolled(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "log", replace(SMALL, preallocate=True))
        size = append(log).size
        path = log.segments.active.path
        assert path.stat().st_size == 2000
        log.roll(NOW)
        assert path.stat().st_size == size


class TestFailingDisk:
    def test_a_full_disk_leaves_the_log_unchanged(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        append(log, 2)
        size = log.segments.size
        real = os.pwritev

        def pwritev(descriptor: int, buffers: list[bytes], position: int) -> int:
            return real(descriptor, [buffers[0]], position)

        monkeypatch.setattr(os, "pwritev", pwritev)
        monkeypatch.setattr(os, "pwrite", refuse)
        with pytest.raises(KafkaError, match=r"cannot append .* No space left on device") as raised:
            append(log, 2)
        monkeypatch.undo()

        assert raised.value.code == ErrorCode.kafka_storage_error
        assert log.segments.active.path.stat().st_size == size == log.segments.size
        append(log, 2)
        assert offsets(read_all(log)) == [0, 1, 2, 3]

    def test_a_partial_write_is_completed(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.pwritev
        monkeypatch.setattr(os, "pwritev", lambda file, buffers, position: real(file, [buffers[0][:5]], position))
        append(log, 2)
        assert offsets(read_all(log)) == [0, 1]


class TestTruncation:
    def fill(self, log: Log) -> None:
        for place in range(30):
            append(log, 2, epoch=place // 10, timestamp=NOW + place)

    def test_everything_from_the_offset_on_is_deleted(self, log: Log) -> None:
        self.fill(log)
        for offset, end in ((100, 60), (60, 60), (59, 58), (40, 40), (31, 30), (21, 20), (2, 2), (1, 0), (0, 0)):
            log.truncate_to(offset)
            assert log.log_end_offset == end
            assert offsets(read_all(log)) == list(range(end))
            append(log, 2)
            assert offsets(read_all(log)) == list(range(end + 2))

    def test_epochs_and_timestamps_are_truncated_too_and_a_restart_finds_the_truncated_log(self, log: Log) -> None:
        self.fill(log)
        log.truncate_to(31)
        for found in (log, open_log(log.directory)):
            assert [entry.epoch for entry in found.leader_epochs.entries] == [0, 1]
            assert found.reader.max_timestamp() == (NOW + 15, 29)
            assert offsets(read_all(found)) == list(range(30))

    def test_timestamps_of_batches_appended_with_truncated_ones_stay(self, log: Log, tmp_path: Path) -> None:
        append(log, 3, timestamp=NOW + 50, value=b"v" * 100)
        kept, dropped = batch(3, timestamp=NOW + 20), batch(4, timestamp=NOW + 90)
        log.append(
            (kept, dropped),
            len(kept) + len(dropped),
            base_offset=3,
            first_last_offset=3,
            last_offset=4,
            max_timestamp=NOW + 90,
            offset_of_max_timestamp=4,
            leader_epoch=0,
            now_ms=NOW,
        )
        log.truncate_to(4)
        assert log.reader.max_timestamp() == (NOW + 52, 2)
        assert log.reader.offset_for_timestamp(NOW + 30) == (NOW + 50, 0, 0)
        log.segments.active.write_indexes()
        again = open_log(tmp_path / "log", kernel_survived=True)
        assert again.reader.max_timestamp() == (NOW + 52, 2)

    def test_truncating_before_the_log_start_restarts_the_log(self, log: Log) -> None:
        self.fill(log)
        log.apply_retention(NOW + 10**12, 60)
        log.truncate_to(5)
        assert (log.log_start_offset, log.log_end_offset) == (5, 5)

    def test_a_log_can_restart_at_any_offset(self, log: Log) -> None:
        self.fill(log)
        log.truncate_fully_and_start_at(1000)
        assert (log.log_start_offset, log.log_end_offset, log.flusher.recovery_point) == (1000, 1000, 0)
        assert log.leader_epochs.entries == ()
        append(log, 2)
        assert offsets(read_all(log)) == [1000, 1001]


class TestRetention:
    def fill(self, log: Log) -> None:
        for place in range(30):
            append(log, timestamp=NOW + place * 1000, value=b"v" * 150)

    def test_segments_whose_newest_record_is_too_old_are_deleted(self, log: Log) -> None:
        self.fill(log)
        log.configure(replace(SMALL, retention_ms=10_000))
        second = log.segments.ordered[1]
        assert log.apply_retention(log.segments.ordered[0].max_timestamp + 10_001, 30) == 1
        assert log.log_start_offset == second.base_offset
        with pytest.raises(KafkaError):
            log.reader.read(0, 100, upto_offset=30)

    def test_the_oldest_segments_are_deleted_if_the_others_reach_the_size_limit(self, log: Log) -> None:
        self.fill(log)
        kept = log.segments.ordered[1:]
        log.configure(replace(SMALL, retention_ms=-1, retention_bytes=log.segments.size - 1))
        assert log.apply_retention(NOW, 30) == 0
        log.configure(replace(SMALL, retention_ms=-1, retention_bytes=sum(item.size for item in kept)))
        assert log.apply_retention(NOW, 30) == 1
        assert log.segments.ordered == kept

    def test_segments_before_the_log_start_offset_are_deleted_with_any_cleanup_policy(self, log: Log) -> None:
        self.fill(log)
        log.configure(replace(SMALL, cleanup_policy=frozenset({"compact"})))
        log.advance_log_start(log.segments.ordered[2].base_offset + 1)
        assert log.apply_retention(NOW, 30) == 2
        assert log.log_start_offset == log.segments.ordered[0].base_offset + 1

    def test_a_compacted_topic_keeps_old_records(self, log: Log) -> None:
        self.fill(log)
        log.configure(replace(SMALL, cleanup_policy=frozenset({"compact"}), retention_ms=1, retention_bytes=1))
        assert log.apply_retention(NOW + 10**12, 30) == 0

    def test_records_above_the_high_watermark_stay(self, log: Log) -> None:
        self.fill(log)
        log.configure(replace(SMALL, retention_ms=0))
        limit = log.segments.ordered[1].base_offset
        assert log.apply_retention(NOW + 10**12, limit) == 1

    def test_files_are_removed_after_the_delay(self, log: Log) -> None:
        self.fill(log)
        log.configure(replace(SMALL, retention_ms=0, file_delete_delay_ms=5000))
        later = NOW + 10**12
        log.apply_retention(later, 30)
        assert list(log.directory.glob("*.log.deleted"))
        log.deleted_files.remove_due(later + 4999)
        assert list(log.directory.glob("*.log.deleted"))
        log.deleted_files.remove_due(later + 5000)
        assert not list(log.directory.glob("*.deleted"))

    def test_the_log_cannot_start_after_its_end(self, log: Log) -> None:
        self.fill(log)
        with pytest.raises(KafkaError, match="ends at offset 30; it cannot start at 31"):
            log.advance_log_start(31)


class TestTimestamps:
    def test_a_lookup_finds_the_exact_record_within_a_batch(self, log: Log) -> None:
        for place in range(20):
            append(log, 10, timestamp=NOW + place * 100, step=10, codec=Codec.LZ4, epoch=7)
        assert log.reader.offset_for_timestamp(NOW + 555) == (NOW + 560, 56, 7)
        assert log.reader.offset_for_timestamp(NOW + 560) == (NOW + 560, 56, 7)
        assert log.reader.offset_for_timestamp(0) == (NOW, 0, 7)
        assert log.reader.offset_for_timestamp(NOW + 1991) is None

    def test_the_timestamp_at_an_offset_is_estimated_from_the_batch_header(self, log: Log) -> None:
        for place in range(20):
            append(log, 10, timestamp=NOW + place * 1000, step=10, codec=Codec.LZ4)
        times = [timestamp_at(log.segments.ordered, offset) for offset in (0, 9, 10, 155, 199)]
        assert times == [NOW, NOW + 90, NOW + 1000, NOW + 15_050, NOW + 19_090]
        assert timestamp_at(log.segments.ordered, 200) is None

    def test_a_lookup_ignores_records_before_the_log_start_offset(self, log: Log) -> None:
        append(log, 10, step=10)
        log.advance_log_start(4)
        assert log.reader.offset_for_timestamp(NOW) == (NOW + 40, 4, 0)

    @settings(max_examples=examples(50))
    @given(
        st.lists(st.tuples(st.integers(1, 4), st.integers(0, 60), st.integers(0, 5)), min_size=1, max_size=40),
        st.lists(st.integers(-5, 80), min_size=1, max_size=10),
    )
    def test_a_lookup_returns_the_same_as_a_scan(
        self, tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[int, int, int]], wanted: list[int]
    ) -> None:
        log = open_log(tmp_path_factory.mktemp("scan"))
        for count, start, step in batches:
            append(log, count, timestamp=NOW + start, step=step)
        records = read_all(log)
        for timestamp in wanted:
            first = next((record for record in records if record.timestamp >= NOW + timestamp), None)
            expected = None if first is None else (first.timestamp, first.offset, 0)
            assert log.reader.offset_for_timestamp(NOW + timestamp) == expected
        newest = max(records, key=lambda record: record.timestamp)
        assert log.reader.max_timestamp() == (newest.timestamp, newest.offset)


class TestFlushing:
    def test_only_rolled_segments_can_be_flushed(self, log: Log) -> None:
        append(log, 5)
        log.roll(NOW)
        append(log, 5)
        log.flusher.flush_rolled()
        assert log.flusher.recovery_point == 5

    def test_a_flush_is_due_after_flush_messages(self, log: Log) -> None:
        log.configure(replace(SMALL, flush_messages=10))
        append(log, 9)
        assert not log.flusher.flush_due(NOW)
        append(log, 1)
        assert log.flusher.flush_due(NOW)
        log.flusher.flush(NOW)
        assert not log.flusher.flush_due(NOW)

    def test_a_flush_is_due_after_flush_ms(self, log: Log) -> None:
        log.configure(replace(SMALL, flush_ms=1000))
        assert not log.flusher.flush_due(NOW + 1000)
        append(log, 1)
        assert not log.flusher.flush_due(NOW + 999)
        assert log.flusher.flush_due(NOW + 1000)

    def test_a_truncation_during_the_flush_keeps_the_recovery_point_down(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append(log, 5)
        append(log, 5)
        monkeypatch.setattr("headrace.storage.log.flusher.sync_directory", lambda _: log.truncate_to(5))
        log.flusher.flush()
        assert log.flusher.recovery_point == 0


operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5), st.integers(0, 300)),
        st.tuples(st.just("read"), st.integers(0, 100), st.integers(1, 3000)),
        st.tuples(st.just("truncate"), st.integers(0, 100), st.just(0)),
        st.tuples(st.just("start"), st.integers(0, 100), st.just(0)),
        st.tuples(st.just("roll"), st.just(0), st.just(0)),
        st.tuples(st.just("retain"), st.just(0), st.integers(0, 4000)),
        st.tuples(st.just("reopen"), st.booleans(), st.just(0)),
    ),
    min_size=5,
    max_size=60,
)


# make soak plays longer histories
@settings(max_examples=examples(60))
@given(operations)
def test_a_log_behaves_like_a_list_of_batches(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    directory = tmp_path_factory.mktemp("model") / "log"
    log = open_log(directory)
    model: list[tuple[int, int]] = []  # first and last offset of each batch
    for step, first, second in steps:
        start, end = log.log_start_offset, log.log_end_offset
        within = start + first * (end - start) // 100
        if step == "append":
            header = append(log, first, value=b"x" * second, epoch=len(model) // 5)
            model.append((header.base_offset, header.last_offset))
        elif step == "read" and end > start:
            part = log.reader.read(within, second, upto_offset=end)
            if part is not None:
                returned = [(each.base_offset, each.last_offset) for _, each in batch_headers(part.read())]
                place = next(at for at, (_, last) in enumerate(model) if last >= within)
                assert returned == model[place : place + len(returned)]
                assert returned
        elif step == "truncate":
            log.truncate_to(within)
            model = [item for item in model if item[1] < within]
        elif step == "start":
            log.advance_log_start(within)
        elif step == "roll":
            log.roll(NOW)
        elif step == "retain":
            log.configure(replace(SMALL, retention_bytes=second, retention_ms=-1))
            log.apply_retention(NOW, end)
            log.configure(SMALL)
        elif step == "reopen":
            if first:
                log.close()
            log = open_log(
                directory,
                clean=bool(first),
                recovery_point=log.flusher.recovery_point,
                log_start_offset=log.log_start_offset,
            )
        model = [item for item in model if item[0] >= log.segments.ordered[0].base_offset]
        assert [(item.base_offset, item.last_offset) for item in log.segments.headers(0)] == model
        if model:
            assert log.log_end_offset == model[-1][1] + 1
    expected = [offset for first, last in model for offset in range(first, last + 1) if offset >= log.log_start_offset]
    assert offsets(read_all(log)) == expected
    content = index_content(log)
    for each in log.segments.ordered[:-1]:
        assert each.time_index.last[0] == each.max_timestamp
    assert [base for base, _, _ in content] == sorted(base for base, _, _ in content)


def test_a_log_start_that_cannot_be_noted_is_a_storage_error(log: Log) -> None:
    append(log, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LeaderEpochs, "truncate_from_start", refuse)
        with pytest.raises(KafkaError) as caught:
            log.advance_log_start(1)
    assert caught.value.code is ErrorCode.kafka_storage_error
    assert log.log_start_offset == 0
    log.advance_log_start(1)
    assert log.log_start_offset == 1
