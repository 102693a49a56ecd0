"""Damage that no crash explains: valid records stay readable, and reading lost ones is an error."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.producer_recovery import recover_producers
from headrace.storage.log.indexes.txn_index import AbortedTransaction
from headrace.storage.log.log import Log
from headrace.storage.log.producers.producer_snapshot import ProducerEntry, write_snapshot
from headrace.storage.log.segment_files import INDEX_SUFFIX
from tests.unit.storage.logs import NOW, append, offsets, open_log, read_all


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log with several segments after a clean shutdown."""
    log = open_log(tmp_path / "log")
    for place in range(40):
        append(log, 2, timestamp=NOW + place)
    ordered = log.segments.ordered
    log.close()
    log.segments.replace(ordered)
    return log


def start_again(log: Log, *, clean: bool) -> Log:
    return open_log(log.directory, clean=clean, recovery_point=80)


class TestDamageInTheMiddle:
    @pytest.mark.parametrize("clean", [True, False])
    def test_in_a_batch_and_an_index_leaves_everything_else_readable(self, log: Log, clean: bool) -> None:
        _, damaged, following, *_ = log.segments.ordered
        content = bytearray(damaged.path.read_bytes())
        _, (start, header), *_ = damaged.headers()
        content[start : start + 20] = bytes(20)
        damaged.path.write_bytes(content)
        damaged.index.path.unlink()

        again = start_again(log, clean=clean)

        assert again.log_end_offset == 80
        assert offsets(read_all(again, following.base_offset)) == list(range(following.base_offset, 80))
        assert damaged.path.read_bytes() == content
        with pytest.raises(KafkaError, match="no valid record batch") as caught:
            read_all(again, header.base_offset)
        assert caught.value.code is ErrorCode.corrupt_message

    def test_in_one_checksum_leaves_the_rest_of_the_segment_indexed(self, log: Log) -> None:
        damaged = log.segments.ordered[1]
        content = bytearray(damaged.path.read_bytes())
        entries = damaged.index.path.read_bytes()
        content[80] ^= 1
        damaged.path.write_bytes(content)
        damaged.index.path.unlink()

        again = start_again(log, clean=True)

        assert again.segments.ordered[1].index.path.read_bytes() == entries
        assert damaged.path.read_bytes() == content

    @pytest.mark.parametrize("kept", ["nothing", "some batches", "a part of a batch"])
    def test_reading_the_lost_end_of_a_segment_is_an_error(
        self, log: Log, kept: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        _, damaged, following, *_ = log.segments.ordered
        batches = list(damaged.headers())
        whole = 0 if kept == "nothing" else 2
        with damaged.path.open("r+b") as file:
            file.truncate(batches[whole][0] + (90 if kept == "a part of a batch" else 0))

        for clean in (True, False):
            caplog.clear()
            with caplog.at_level(logging.ERROR):
                again = start_again(log, clean=clean)
            assert damaged.path.name in caplog.text
            lost = batches[whole][1].base_offset
            for offset in range(lost, following.base_offset):
                with pytest.raises(KafkaError) as caught:
                    again.reader.read(offset, 1 << 20, upto_offset=80)
                assert caught.value.code is ErrorCode.corrupt_message
            assert offsets(read_all(again, following.base_offset)) == list(range(following.base_offset, 80))
            again.close()


def test_segments_after_a_torn_one_are_kept_as_damaged_files(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    first, second, *_ = log.segments.ordered
    whole, content = first.path.read_bytes(), second.path.read_bytes()
    for _ in range(2):
        first.path.write_bytes(whole[:-1])
        second.path.write_bytes(content)
        again = open_log(log.directory)
        assert again.log_end_offset == second.base_offset - 2
        assert len(again.segments.ordered) == 1
        assert list(log.directory.glob("*.log")) == [first.path]

    assert "truncating" in caplog.text
    assert f"{second.path} follows a torn segment" in caplog.text
    kept = sorted(log.directory.glob(f"{second.path.name}*"))
    assert [path.name for path in kept] == [f"{second.path.name}.1.damaged", f"{second.path.name}.damaged"]
    assert [path.read_bytes() for path in kept] == [content, content]


def test_a_log_that_ends_before_its_recovery_point_has_lost_records(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    last = log.segments.active
    (start, header), *_ = list(last.headers())[-1:]
    with last.path.open("r+b") as file:
        file.truncate(start)

    with caplog.at_level(logging.ERROR):
        assert start_again(log, clean=False).log_end_offset == header.base_offset

    assert f"ends at offset {header.base_offset}, but was flushed up to offset 80" in caplog.text


def test_the_last_segment_is_copied_before_damage_in_it_is_cut_off(log: Log) -> None:
    last = log.segments.active
    content = last.path.read_bytes()[:-1] + b"\1"
    last.path.write_bytes(content)
    last.index.path.unlink()

    start_again(log, clean=True)

    assert last.path.with_name(last.path.name + ".damaged").read_bytes() == content


def test_a_walk_over_all_batches_continues_after_damage(log: Log) -> None:
    _, damaged, following, *_ = log.segments.ordered
    with damaged.path.open("r+b") as file:
        file.truncate(list(damaged.headers())[1][0] + 30)

    again = start_again(log, clean=True)

    found = [header.base_offset for header in again.segments.headers(0)]
    assert found == [*range(0, damaged.base_offset + 2, 2), *range(following.base_offset, 80, 2)]


@pytest.mark.parametrize("is_torn", [True, False])
def test_a_damaged_swap_file_does_not_replace_valid_segments(log: Log, is_torn: bool) -> None:
    second = log.segments.ordered[1]
    swap = second.path.with_name(second.path.name + ".swap")
    swap.write_bytes(second.path.read_bytes()[:-1] if is_torn else b"\0")

    again = start_again(log, clean=False)

    assert offsets(read_all(again)) == list(range(80))
    assert swap.with_name(swap.name + ".damaged").exists()


def test_a_log_start_after_the_end_keeps_the_records_as_damaged_files(log: Log) -> None:
    sizes = [segment.size for segment in log.segments.ordered]

    again = open_log(log.directory, clean=True, log_start_offset=99_999)

    assert again.log_start_offset == again.log_end_offset == 99_999
    assert [path.name for path in log.directory.glob("*.log")] == [f"{99_999:020}.log"]
    assert [path.stat().st_size for path in sorted(log.directory.glob("*.damaged"))] == sizes


def test_a_lost_end_after_the_recovery_point_is_logged(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    _, damaged, following, *_ = log.segments.ordered
    damaged.path.write_bytes(b"")

    with caplog.at_level(logging.ERROR):
        open_log(log.directory)

    message = (
        f"{damaged.path} ends at offset {damaged.base_offset}, but the next segment begins at {following.base_offset}"
    )
    assert message in caplog.text


class TestAnIndexTruncatedByAnotherProgram:
    """Only the partition fails."""

    @pytest.fixture
    def middle(self, log: Log) -> int:
        """An offset in the middle of a segment, whose position only the index of the segment has."""
        segment, following = log.segments.ordered[1:3]
        segment.index.path.write_bytes(b"")
        return (segment.base_offset + following.base_offset) // 2

    def test_fails_reads_and_truncations(self, log: Log, middle: int) -> None:
        base = log.segments.ordered[1].base_offset
        uses: list[Callable[[], object]] = [
            lambda: log.reader.read(middle, 1000, upto_offset=80),
            lambda: log.reader.read(base, 1000, upto_offset=middle),
            lambda: log.truncate_to(middle),
        ]
        for use in uses:
            with pytest.raises(KafkaError, match=f"{INDEX_SUFFIX} has been truncated by another program") as caught:
                use()
            assert caught.value.code is ErrorCode.kafka_storage_error

    def test_fails_reads_of_aborted_transactions(self, log: Log) -> None:
        part = log.reader.read(0, 1000, upto_offset=80)
        assert part is not None
        first = log.segments.ordered[0]
        first.txn_index.append(AbortedTransaction(1, 0, 1, 0))
        first.index.path.write_bytes(b"")
        with pytest.raises(KafkaError, match="truncated by another program"):
            log.reader.aborted_transactions(0, part)

    def test_fails_scans_and_is_not_skipped_like_damaged_batches(self, log: Log, middle: int) -> None:
        with pytest.raises(KafkaError, match="truncated by another program"):
            list(log.segments.batches(middle))

    def test_fails_the_recovery_of_producers(self, log: Log, middle: int, caplog: pytest.LogCaptureFixture) -> None:
        write_snapshot(log.directory, middle, [ProducerEntry(1, 0, 0, 1, 1, NOW, -1, -1).packed()], sync=False)
        with pytest.raises(KafkaError, match="truncated by another program"):
            recover_producers(log, 80)
        assert "its latest batches cannot be read" in caplog.text
