"""A crash during compaction loses nothing, and the next compaction has the same result."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.storage.cleaner.job import CleanedGroup, CleanedLog, CleaningJob
from headrace.storage.log.log import Log
from headrace.wire.records import iter_records
from tests.unit.storage.cleaner.compaction import COMPACTED, TP, InlineProcess, Table, filled, newest
from tests.unit.storage.logs import NOW, open_log, read_all

OPERATIONS = ("rename", "unlink", "open", "pwrite", "pwritev", "ftruncate", "write", "truncate", "fsync")
State = dict[str, bytes]


@contextmanager
def states_after_each_operation(directory: Path) -> Iterator[list[State]]:
    """Record the directory's files after every file operation."""
    states: list[State] = []
    real_open = os.open

    def read(path: str) -> bytes:
        descriptor = real_open(path, os.O_RDONLY)
        try:
            return os.read(descriptor, 1 << 20)
        finally:
            os.close(descriptor)

    def recording(original: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any, **options: Any) -> Any:
            result = original(*args, **options)
            with os.scandir(directory) as entries:
                state = {entry.name: read(entry.path) for entry in entries}
            if not states or states[-1] != state:
                states.append(state)
            return result

        return recorded

    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, recording(getattr(os, name)))
        yield states


def recovered(directory: Path, state: State, *, kernel_survived: bool) -> Log:
    directory.mkdir()
    for name, content in state.items():
        (directory / name).write_bytes(content)
    return open_log(directory, COMPACTED, kernel_survived=kernel_survived)


@pytest.mark.parametrize("kernel_survived", [True, False])
def test_a_crash_after_any_operation_loses_nothing(tmp_path: Path, kernel_survived: bool) -> None:
    table = filled(tmp_path / "data")
    before = table.records()
    with states_after_each_operation(table.log.directory) as states:
        table.compact()
    after = table.records()
    assert len(after) < len(before)
    assert len(states) > 30
    originals = {item.offset: item for item in before}
    seen = set()
    for place, state in enumerate(states):
        log = recovered(tmp_path / str(place), state, kernel_survived=kernel_survived)
        found = read_all(log)
        assert newest(found) == newest(before)
        assert all(originals[item.offset] == item for item in found)
        assert [item.offset for item in found] == sorted({item.offset for item in found})
        assert log.log_end_offset == table.log.log_end_offset
        assert not {path.suffix for path in log.directory.iterdir()} & {".cleaned", ".swap", ".deleted"}
        seen.add(len(found))
        log.close()
    assert {len(before), len(after)} <= seen


class EventBeforeSwap(InlineProcess):
    """Triggers an event after a copy is written and before it is swapped in."""

    def __init__(self, event: Callable[[], object]) -> None:
        super().__init__()
        self._event = event

    def clean(self, job: CleaningJob, swap: Callable[[CleanedGroup], None]) -> CleanedLog:
        def late(group: CleanedGroup) -> None:
            self._event()
            swap(group)

        return super().clean(job, late)


class TestTheLogChangesBeforeTheSwap:
    @pytest.fixture
    def table(self, tmp_path: Path) -> Table:
        return filled(tmp_path / "data")

    def assert_untouched(self, table: Table) -> None:
        """Check that the compaction had no effect and did not fail."""
        before = table.records()
        assert not table.cleaner.failing
        assert table.dirs.cleaned_upto(TP) is None
        table.reopen()
        assert table.records() == before

    def test_truncated(self, table: Table) -> None:
        assert table.cleaner.clean_filthiest(EventBeforeSwap(lambda: table.log.truncate_to(5)))
        assert table.log.log_end_offset == 4
        self.assert_untouched(table)

    def test_truncated_in_the_middle_of_the_swap(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        def truncate_first(_: Path) -> None:
            table.log.truncate_to(5)

        monkeypatch.setattr("headrace.storage.cleaner.log_cleaner.sync_directory", truncate_first)
        assert table.compact()
        assert table.log.log_end_offset == 4
        self.assert_untouched(table)

    def test_cut_by_retention(self, table: Table) -> None:
        table.configure(cleanup_policy=frozenset({"compact", "delete"}), retention_bytes=500)
        expire = EventBeforeSwap(lambda: table.log.apply_retention(NOW, table.log.log_end_offset))
        assert table.cleaner.clean_filthiest(expire)
        assert table.log.log_start_offset > 0
        self.assert_untouched(table)

    def test_deleted(self, table: Table) -> None:
        assert table.cleaner.clean_filthiest(EventBeforeSwap(lambda: table.dirs.delete(TP, now_ms=NOW)))
        assert not table.cleaner.failing


def test_a_reader_can_finish_reading_a_replaced_segment(tmp_path: Path) -> None:
    table = filled(tmp_path / "data")
    part = table.log.reader.read(0, 1 << 20, upto_offset=table.log.log_end_offset)
    assert part is not None
    content = part.read()
    table.compact()
    table.log.deleted_files.remove_due(NOW + table.log.config.file_delete_delay_ms)
    assert not list(table.log.directory.glob("*.deleted"))
    assert part.read() == content
    assert next(iter_records(content)).offset == 0


def test_two_cleaners_never_clean_the_same_log(tmp_path: Path) -> None:
    table = filled(tmp_path / "data")
    others: list[bool] = []
    table.cleaner.clean_filthiest(EventBeforeSwap(lambda: others.append(table.compact())))
    assert others
    assert not any(others)
