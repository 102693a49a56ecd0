"""A compacted log has the last record of every key, at its offset and in order."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.cleaner import log_cleaner, segments_io
from headrace.storage.cleaner.log_cleaner import RETRY_MS, CleanerSettings, Compactable, Dirt, dirt_of
from headrace.storage.dirs.disk_space import Marks
from headrace.storage.log.producers.producer_snapshot import ProducerEntry
from headrace.storage.log.segment_files import SNAPSHOT_SUFFIX
from headrace.types import TopicPartition
from headrace.wire.batch import DELETE_HORIZON_FLAG, batch_crc_ok
from headrace.wire.compression import Codec
from headrace.wire.records import batch_headers
from tests.support.examples import examples
from tests.unit.storage.cleaner.compaction import DAY, TP, Table
from tests.unit.storage.failing_calls import FailingCall, refuse
from tests.unit.storage.logs import NOW, read_all


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "data")


@pytest.fixture
def dirty(table: Table) -> Table:
    """A log with a superseded record at offset 0."""
    table.put(("a", "1"), ("a", "2"))
    table.log.roll(NOW)
    return table


def test_only_the_newest_record_of_each_key_is_kept_at_its_offset(table: Table) -> None:
    table.put(("a", "1"), ("b", "1"), ("c", "1"))
    table.put(("a", "2"), (None, "from before the topic was compacted"))
    table.put(("b", "2"), ("d", "1"))
    table.log.roll(NOW)
    assert table.compact()
    assert table.pairs() == [(2, b"c", b"1"), (3, b"a", b"2"), (5, b"b", b"2"), (6, b"d", b"1")]
    assert not table.compact()


def test_the_active_segment_is_not_compacted(table: Table) -> None:
    table.put(("a", "1"))
    table.put(("a", "2"))
    assert not table.compact()
    table.log.roll(NOW)
    table.put(("a", "3"))
    assert table.compact()
    assert table.pairs() == [(1, b"a", b"2"), (2, b"a", b"3")]


def test_records_from_the_last_stable_offset_on_are_not_compacted(table: Table) -> None:
    for place in range(3):
        table.put(("a", str(place)))
        table.put(("a", f"{place}+"))
        table.log.roll(NOW)
    table.last_stable_offset = 3
    assert table.compact()
    assert [offset for offset, *_ in table.pairs()] == [1, 2, 3, 4, 5]


def test_whole_batches_are_copied_byte_for_byte_and_others_keep_their_codec(table: Table) -> None:
    for codec in Codec:
        table.put((f"{codec}", "stays"), ("x", "old"), codec=codec)
        table.put((f"{codec}+", "stays"), (f"{codec}++", "stays"), codec=codec)
    table.put(("x", "new"))
    table.log.roll(NOW)
    before = {header.base_offset: header for header in table.headers()}
    table.compact()
    data = table.content()
    for position, header in batch_headers(data):
        assert batch_crc_ok(data, position, header.size)
        original = before[header.base_offset]
        assert (header.codec, header.last_offset) == (original.codec, original.last_offset)
        assert (header == original) is (header.record_count == original.record_count)
    assert len(table.records()) == 3 * len(Codec) + 1


class TestTombstones:
    def test_a_tombstone_is_removed_delete_retention_ms_after_the_first_compaction(self, table: Table) -> None:
        table.put(("a", "1"), ("b", "1"))
        table.put(("a", None), ("c", "1"))
        table.log.roll(NOW)
        table.now = NOW + 30 * DAY
        table.compact()
        assert table.pairs() == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
        horizon = table.headers()[1]
        assert horizon.attributes & DELETE_HORIZON_FLAG
        assert horizon.base_timestamp == table.now + DAY
        assert [record.timestamp for record in table.records()] == [NOW + 1, NOW, NOW + 1]

        table.now += DAY - 1
        content = table.content()
        table.compact(from_start=True)
        assert table.content() == content

        table.now += 1
        table.compact(from_start=True)
        assert table.pairs() == [(1, b"b", b"1"), (3, b"c", b"1")]

    def test_older_values_never_reappear(self, table: Table) -> None:
        table.put(("a", "1"))
        table.log.roll(NOW)
        table.compact()
        table.put(("a", None))
        table.put(("z", "1"))
        table.log.roll(NOW)
        table.compact()
        table.now += DAY
        table.compact(from_start=True)
        assert table.pairs() == [(2, b"z", b"1")]


def test_the_last_batch_of_a_producer_stays_empty_until_the_producer_expires(table: Table) -> None:
    last = table.put(("a", "1"), ("b", "1"), producer_id=7, producer_epoch=2, base_sequence=40)
    table.put(("a", "2"), ("b", "2"), producer_id=8, producer_epoch=0, base_sequence=0)
    table.put(("a", "3"), ("b", "3"))
    table.producers = [ProducerEntry(7, 2, 41, last.last_offset, 1, NOW, -1, -1)]
    table.log.roll(NOW)
    for _ in range(2):
        table.compact(from_start=True)
        first, second = table.headers()
        assert (first.producer_id, first.producer_epoch, first.base_sequence, first.last_sequence) == (7, 2, 40, 41)
        assert (first.base_offset, first.last_offset, first.record_count) == (0, 1, 0)
        assert second.base_offset == 4
    table.producers = []
    table.compact(from_start=True)
    assert [header.base_offset for header in table.headers()] == [4]


def test_the_last_batch_before_the_uncleaned_part_stays_empty(table: Table) -> None:
    table.put(("a", "1"))
    table.put(("b", "1"))
    table.log.roll(NOW)
    table.compact()
    table.put(("b", None))
    table.put(("c", "1"))
    table.put(("c", None))
    table.log.roll(NOW)
    table.now += 1
    table.compact()
    table.now += DAY
    table.compact(from_start=True)
    assert [(header.last_offset, header.record_count) for header in table.headers()] == [(0, 1), (4, 0)]


Change = tuple[list[tuple[str, str | None]], Codec, bool]
changes = st.lists(
    st.tuples(
        st.lists(
            st.tuples(
                st.sampled_from(["a", "b", "c", "a key of more than fifteen bytes", "another key that is long", ""]),
                st.one_of(st.none(), st.text("xyz", max_size=40)),
            ),
            min_size=1,
            max_size=6,
        ),
        st.sampled_from(Codec),
        st.booleans(),
    ),
    max_size=10,
)


def apply(table: Table, history: list[Change], compact: Callable[[], object] = lambda: None) -> None:
    for records, codec, roll in history:
        table.put(*records, codec=codec)
        if roll:
            table.log.roll(NOW)
            compact()


# make soak compacts many more logs, and crashes
@settings(max_examples=examples(25))
@given(history=changes, more=changes, map_bytes=st.sampled_from([2_000, 10_000_000]))
def test_any_history_keeps_its_last_values_offsets_and_order(
    tmp_path_factory: pytest.TempPathFactory, history: list[Change], more: list[Change], map_bytes: int
) -> None:
    table = Table(tmp_path_factory.mktemp("history") / "data")
    table.settings = CleanerSettings(map_bytes=map_bytes, io_buffer_bytes=100, bytes_per_second=1e12)
    apply(table, history)
    while table.compact():
        pass
    apply(table, more)
    table.log.roll(NOW)
    active = table.log.segments.active.base_offset
    written = table.log.log_end_offset
    originals = {record.offset: record for record in table.records()}
    newest = {original.key: original.offset for original in originals.values()}
    while table.compact():
        pass
    assert table.log.segments.active.base_offset == active
    assert table.log.log_end_offset == written
    kept = table.records()
    assert [item.offset for item in kept] == sorted(newest.values())
    assert all(item == originals[item.offset] for item in kept)
    assert read_all(table.log) == kept
    content = table.content()
    table.compact(from_start=True)
    while table.compact():
        pass
    assert table.content() == content
    table.reopen()
    assert table.records() == kept
    table.close()


class TestDueLogs:
    def test_a_log_is_due_when_enough_of_it_is_dirty(self, table: Table) -> None:
        table.put(*[(f"{place}", "v") for place in range(50)])
        table.log.roll(NOW)
        table.compact()
        table.configure(min_cleanable_dirty_ratio=0.5)
        table.put(*[(f"{place}", "w") for place in range(20)])
        table.log.roll(NOW)
        assert not table.compact()
        table.put(*[(f"{place}", "w") for place in range(40)])
        table.log.roll(NOW)
        assert table.compact()
        assert len(table.records()) == 50

    def test_records_younger_than_the_minimum_lag_are_not_compacted(self, table: Table) -> None:
        table.configure(min_compaction_lag_ms=1000)
        for age in (5000, 3000, 100):
            table.put(("a", f"{age}"), ("b", f"{age}"), timestamp=NOW - age)
            table.log.roll(NOW)
        assert table.compact()
        assert [offset for offset, *_ in table.pairs()] == [2, 3, 4, 5]

    def test_records_older_than_the_maximum_lag_make_any_log_due(self, table: Table) -> None:
        table.put(*[(f"{place}", "v" * 50) for place in range(50)])
        table.log.roll(NOW)
        table.compact()
        table.configure(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000)
        table.put(("0", "w"))
        table.log.roll(NOW)
        assert not table.compact()
        table.now += 1001
        assert table.compact()

    def test_the_cleaner_offset_survives_a_restart_but_not_the_deletion_of_the_topic(self, dirty: Table) -> None:
        dirty.compact()
        assert (dirty.directory / "cleaner-offset-checkpoint").read_text() == "0\n1\ntable 0 2\n"
        dirty.reopen()
        assert not dirty.compact()
        dirty.dirs.delete(TP, now_ms=NOW)
        dirty.log = dirty.dirs.create(TP, UUID(int=2), dirty.log.config, now_ms=NOW)
        assert dirty.dirs.cleaned_upto(TP) is None


class TestFailures:
    def test_the_error_of_a_batch_too_large_for_memory_has_the_remedy(
        self, dirty: Table, caplog: pytest.LogCaptureFixture
    ) -> None:
        dirty.settings = CleanerSettings(map_bytes=100, io_buffer_bytes=512, bytes_per_second=1e12)
        dirty.compact()
        assert "increase log.cleaner.dedupe.buffer.size" in caplog.text
        assert "log.cleaner.dedupe.buffer.size" in dirty.cleaner.failing[TP]

    def test_a_failing_log_is_retried_after_a_minute_and_reported_once(
        self, dirty: Table, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = dirty.log.segments.ordered[0].path
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        for _ in range(3):
            assert dirty.compact()
            assert not dirty.compact()
            dirty.now += RETRY_MS
        assert caplog.text.count("failed") == 1
        assert "at byte 0" in dirty.cleaner.failing[TP]
        path.write_bytes(content)
        assert dirty.compact()
        assert not dirty.cleaner.failing
        assert dirty.pairs() == [(1, b"a", b"2")]

    def test_a_disk_that_fails_after_the_swap_takes_its_directory_offline(
        self, table: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for value in "123":
            table.put(("a", value))
            table.log.roll(NOW)
        unlink = Path.unlink

        def fail(path: Path, missing_ok: bool = False) -> None:
            if path.suffix == SNAPSHOT_SUFFIX:
                raise OSError(errno.EIO, "Input/output error")
            unlink(path, missing_ok)

        monkeypatch.setattr(Path, "unlink", fail)
        assert table.compact()
        assert table.dirs.owned.offline == {table.directory: "[Errno 5] Input/output error"}

    @pytest.mark.parametrize(
        ("module", "function", "call"),
        [(segments_io, "sync_file", 1), (log_cleaner, "sync_directory", 1), (log_cleaner, "sync_directory", 2)],
        ids=["before the swap", "during the swap", "when the swap is complete"],
    )
    def test_a_disk_that_fails_takes_its_directory_offline(
        self,
        dirty: Table,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        module: ModuleType,
        function: str,
        call: int,
    ) -> None:
        FailingCall(monkeypatch, call, [(module, function)], code=errno.EIO)
        dirty.compact()
        assert dirty.dirs.owned.offline == {dirty.directory: "[Errno 5] Input/output error"}
        assert "will be retried" not in caplog.text

    def test_no_log_of_a_directory_that_fails_during_the_search_is_compacted(
        self, dirty: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = dirty.dirs.create(TopicPartition("other", 0), UUID(int=2), dirty.log.config, now_ms=NOW)
        candidate = Compactable(other, 0, lambda: ())
        monkeypatch.setattr(dirty.cleaner, "_logs", lambda: [*dirty._logs(), candidate])

        def dirt(cleanable: Compactable, cleaned_upto: int | None, now_ms: int) -> Dirt | None:
            if cleanable is candidate:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return dirt_of(cleanable, cleaned_upto, now_ms)

        monkeypatch.setattr("headrace.storage.cleaner.log_cleaner.dirt_of", dirt)
        assert not dirty.compact()
        assert list(dirty.dirs.owned.offline) == [dirty.directory]

    def test_a_full_disk_is_retried_after_a_minute(self, dirty: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(log_cleaner, "sync_directory", refuse)
            assert dirty.compact()
        assert dirty.cleaner.failing == {TP: "[Errno 28] No space left on device"}
        assert not dirty.compact()
        dirty.now += RETRY_MS
        assert dirty.compact()
        assert not dirty.dirs.owned.offline
        assert dirty.pairs() == [(1, b"a", b"2")]


def test_reads_and_writes_are_throttled(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    clock = SimpleNamespace(sleep=slept.append, monotonic=lambda: 1000.0)
    monkeypatch.setattr("headrace.storage.cleaner.segments_io.time", clock)
    table.settings = CleanerSettings(map_bytes=10e6, io_buffer_bytes=512, bytes_per_second=1000)
    table.put(("a", "v" * 400), ("b", "v" * 400))
    table.log.roll(NOW)
    size = table.log.segments.size
    table.compact()
    assert slept[-1] == pytest.approx(3 * size / 1000)


def test_a_log_fails_until_the_disk_has_space_beside_that_reserved_for_the_broker(
    dirty: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved, size = 900_000, dirty.log.segments.size
    dirty.dirs.owned.disk_space[dirty.directory].observe(1_000_000, 500_000, Marks(hard_bytes=reserved))
    # the cleaner may use half of the reserved space
    monkeypatch.setattr(dirty.dirs.owned, "space", lambda _: (1_000_000, reserved // 2 + size - 1))
    assert not dirty.compact()
    assert "free some space there" in dirty.cleaner.failing[TP]
    monkeypatch.setattr(dirty.dirs.owned, "space", lambda _: (1_000_000, reserved // 2 + size))
    dirty.now += RETRY_MS
    assert dirty.compact()
    assert not dirty.cleaner.failing
    assert dirty.pairs() == [(1, b"a", b"2")]
