"""After a crash, a log ends with its last whole batch, whatever the state of its files."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.log.leader_epochs import FILE_NAME, EpochEntry
from headrace.storage.log.log import Log
from headrace.storage.log.producers.producer_snapshot import snapshots, write_snapshot
from tests.support.examples import examples
from tests.unit.storage.logs import NOW, SMALL, append, batch, index_content, offsets, open_log, read_all


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "log"


def filled(directory: Path, batches: int = 40) -> Log:
    log = open_log(directory)
    for place in range(batches):
        append(log, 2, timestamp=NOW + place, epoch=place // 15)
    return log


def checked(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the names of the log files that were read in full."""
    messages = [record.getMessage() for record in caplog.records]
    return [Path(text.split(":")[0]).name for text in messages if "checking" in text]


def test_an_unclean_restart_reads_the_segments_from_the_recovery_point_on(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = filled(directory)
    names = [segment.path.name for segment in log.segments.ordered]
    start = log.segments.ordered[1].base_offset
    with caplog.at_level(logging.INFO):
        log = open_log(directory, recovery_point=start + 3)
    assert checked(caplog) == names[1:]
    assert log.log_end_offset == 80
    assert log.flusher.recovery_point == start + 3


class TestKilledProcess:
    """The kernel survived with all written bytes, so recovery reads only what the indexes do not cover."""

    def test_no_segment_is_read_in_full(self, directory: Path, caplog: pytest.LogCaptureFixture) -> None:
        filled(directory)
        with caplog.at_level(logging.INFO):
            log = open_log(directory, kernel_survived=True)
        assert checked(caplog) == []
        assert offsets(read_all(log)) == list(range(80))

    def test_indexes_are_completed_as_by_a_full_recovery(self, directory: Path) -> None:
        config = replace(SMALL, segment_bytes=1 << 20, index_interval_bytes=0, segment_index_bytes=1 << 20)
        log = open_log(directory, config)
        for place in range(700):
            append(log, timestamp=NOW + place * 7 % 1000)
        on_disk = log.segments.active.index.path.stat().st_size
        assert 0 < on_disk < 700 * 8
        resumed = open_log(directory, config, kernel_survived=True)
        content, end = index_content(resumed), resumed.reader.max_timestamp()
        resumed.close()
        full = open_log(directory, config)
        assert index_content(full) == content
        assert full.reader.max_timestamp() == end == log.reader.max_timestamp()

    def test_an_index_whose_last_entry_is_wrong_is_rebuilt(
        self, directory: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = filled(directory, 9)
        log.close()
        path = next(directory.glob("*.index"))
        entries = path.read_bytes()
        path.write_bytes(entries[:-1] + bytes([entries[-1] ^ 1]))
        with caplog.at_level(logging.INFO):
            log = open_log(directory, kernel_survived=True)
        assert checked(caplog) == ["00000000000000000000.log"]
        assert offsets(read_all(log)) == list(range(18))
        assert path.read_bytes() == entries


@pytest.mark.parametrize("kernel_survived", [True, False])
def test_a_tail_torn_at_any_byte_of_the_last_batch_is_cut_off(directory: Path, kernel_survived: bool) -> None:
    log = filled(directory, 2)
    path = log.segments.active.path
    content = path.read_bytes()
    append(log, value=b"v")
    whole = path.read_bytes()
    for end in range(len(content) + 1, len(whole)):
        path.write_bytes(whole[:end])
        assert open_log(directory, kernel_survived=kernel_survived).log_end_offset == 4
        assert path.read_bytes() == content


def test_garbage_after_the_last_batch_is_cut_off(directory: Path) -> None:
    log = filled(directory, 2)
    for place, garbage in enumerate(
        (b"\x00" * 500, b"\xff" * 500, batch(1000, 3)[:-1], batch(3, 3), bytes(range(256)))
    ):
        with log.segments.active.path.open("ab") as file:
            file.write(garbage)
        log = open_log(directory)
        assert log.log_end_offset == 4 + place, garbage
        append(log)
        assert offsets(read_all(log)) == list(range(5 + place))


@settings(max_examples=examples(60))
@given(position=st.integers(0, 2000), bit=st.integers(0, 7))
def test_a_flipped_bit_ends_the_log_before_its_batch(
    tmp_path_factory: pytest.TempPathFactory, position: int, bit: int
) -> None:
    log = filled(tmp_path_factory.mktemp("flip") / "log", 10)
    path = log.segments.active.path
    content = bytearray(path.read_bytes())
    position %= len(content)
    batches = list(log.segments.active.headers())
    hit = next(at for at, (start, header) in enumerate(batches) if start + header.size > position)
    content[position] ^= 1 << bit
    path.write_bytes(content)
    inside = position - batches[hit][0]
    again = open_log(log.directory)
    if 12 <= inside < 16:
        # the checksum does not cover the leader epoch, which leaders rewrite
        assert again.log_end_offset == 20
    elif inside < 8:
        # nor the base offset; a larger one looks like a gap left by compaction
        assert again.log_end_offset >= batches[hit][1].base_offset
    else:
        assert again.log_end_offset == batches[hit][1].base_offset


def test_rebuilt_indexes_equal_the_original_ones(directory: Path) -> None:
    log = filled(directory)
    log.close()
    expected = index_content(open_log(directory, clean=True))
    for path in [*directory.glob("*.index"), *directory.glob("*.timeindex")]:
        path.unlink()
    assert index_content(open_log(directory)) == expected
    assert sum(len(entries) for _, entries, _ in expected) > 10


@pytest.mark.parametrize(
    ("damage", "clean"),
    [(None, True), (None, False), (b"\x00" * 7, True), (b"\x00" * 4096, True), (b"\xff" * 24, True)],
    ids=["missing", "missing after a crash", "torn", "zeros", "ones"],
)
def test_a_missing_or_damaged_index_is_rebuilt(
    directory: Path, damage: bytes | None, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    filled(directory).close()
    expected = index_content(open_log(directory, clean=True))
    # in different segments: the indexes of a segment are rebuilt together
    paths = [min(directory.glob("*.index")), sorted(directory.glob("*.timeindex"))[1]]
    for path in paths:
        path.unlink() if damage is None else path.write_bytes(damage)
    log = open_log(directory, clean=clean, recovery_point=80)
    assert [f"{path} is missing; rebuilding it" in caplog.text for path in paths] == [damage is None] * 2
    assert index_content(log) == expected
    assert log.log_end_offset == 80


def test_a_torn_log_is_recovered_even_after_a_clean_shutdown(directory: Path) -> None:
    log = filled(directory)
    log.close()
    path = max(directory.glob("*.log"))
    path.write_bytes(path.read_bytes()[:-3])
    assert open_log(directory, clean=True).log_end_offset == 78


def test_an_index_without_its_log_is_removed(directory: Path) -> None:
    filled(directory).close()
    stray = directory / "00000000000000009999.index"
    stray.write_bytes(b"")
    open_log(directory, clean=True)
    assert not stray.exists()


def test_unknown_files_stay(directory: Path) -> None:
    filled(directory).close()
    names = ["notes.txt", "123.log", "00000000000000000000.bak", "00000000000000000001", f"{'9' * 20}.log"]
    for name in names:
        (directory / name).write_text("mine")
    assert open_log(directory).log_end_offset == 80
    assert all((directory / name).read_text() == "mine" for name in names)


def test_swap_files_replace_their_source_segments(directory: Path) -> None:
    log = filled(directory)
    ends = log.segments.ordered[2].base_offset
    kept = batch(4, 2) + batch(ends - 2, 2)
    log.close()
    (directory / "00000000000000000000.log.swap").write_bytes(kept)
    (directory / "00000000000000000000.index.swap").write_bytes(b"")
    (directory / "00000000000000000000.timeindex.swap").write_bytes(b"")
    log = open_log(directory)
    assert [item.base_offset for item in log.segments.ordered][:2] == [0, ends]
    assert offsets(read_all(log)) == [4, 5, ends - 2, ends - 1, *range(ends, 80)]
    assert not list(directory.glob("*.swap"))


def test_an_unfinished_split_is_dropped(directory: Path) -> None:
    log = filled(directory)
    base = log.segments.ordered[1].base_offset
    log.close()
    (directory / f"{base:020d}.log.swap").write_bytes(batch(base, 1))
    (directory / f"{base:020d}.log.cleaned").write_bytes(b"")
    assert offsets(read_all(open_log(directory))) == list(range(80))


@pytest.mark.parametrize("batches_of_the_old_epoch", [1, 4])
def test_epochs_of_batches_that_were_truncated_are_dropped(directory: Path, batches_of_the_old_epoch: int) -> None:
    log = open_log(directory)
    append(log, 2, epoch=1)
    append(log, epoch=2)
    before = (directory / FILE_NAME).read_bytes()
    log.truncate_to(2)
    for _ in range(batches_of_the_old_epoch):
        append(log, 2, epoch=1)
    append(log, epoch=3)
    # A power failure takes the change of the file back, but not the batches.
    (directory / FILE_NAME).write_bytes(before)

    recovered = open_log(directory)

    assert recovered.leader_epochs.entries == (EpochEntry(1, 0), EpochEntry(3, 2 + 2 * batches_of_the_old_epoch))


def test_an_epoch_that_would_begin_within_the_last_batch_is_dropped(directory: Path) -> None:
    log = open_log(directory)
    append(log, 2, epoch=1)
    append(log, epoch=2)
    before = (directory / FILE_NAME).read_bytes()
    log.truncate_to(0)
    append(log, 3, epoch=1)
    (directory / FILE_NAME).write_bytes(before)

    assert open_log(directory).leader_epochs.entries == (EpochEntry(1, 0),)


def test_epochs_after_the_end_are_dropped(directory: Path) -> None:
    filled(directory).close()
    (directory / FILE_NAME).write_text("0\n3\n0 0\n1 30\n9 80\n")
    assert open_log(directory, clean=True).leader_epochs.entries == (EpochEntry(0, 0), EpochEntry(1, 30))


def test_epochs_are_read_from_the_log_if_their_file_is_missing_or_damaged(directory: Path) -> None:
    log = filled(directory)
    expected = (EpochEntry(0, 0), EpochEntry(1, 30), EpochEntry(2, 60))
    for content in (None, "", "0\n1\n", "7\n0\n", "0\n1\nx y\n", "0\n2\n1 5\n0 9\n"):
        log.close()
        (directory / FILE_NAME).unlink() if content is None else (directory / FILE_NAME).write_text(content)
        log = open_log(directory, clean=True)
        assert log.leader_epochs.entries == expected, content


def test_deleted_records_stay_hidden_after_a_restart(directory: Path) -> None:
    log = filled(directory)
    log.advance_log_start(31)
    log.close()
    log = open_log(directory, clean=True, log_start_offset=31)
    assert offsets(read_all(log)) == list(range(31, 80))
    assert log.leader_epochs.entries[0] == EpochEntry(1, 31)


def test_only_producer_snapshots_that_recovery_can_use_are_kept(directory: Path) -> None:
    log = filled(directory)
    base = log.segments.ordered[1].base_offset
    for offset in (base, base + 2, 78, 80, 90):
        write_snapshot(directory, offset, [])
    log.close()
    open_log(directory, clean=True)
    assert list(snapshots(directory)) == [base, 80]


def test_data_older_than_message_format_2_is_refused_and_unchanged(directory: Path) -> None:
    directory.mkdir()
    # base offset 0, a message of format v1 with CRC-32: key "k", value "v"
    body = b"\x01\x00" + (1_500_000_000_000).to_bytes(8, "big") + b"\x00\x00\x00\x01k\x00\x00\x00\x01v" + b"v" * 60
    from zlib import crc32

    message = crc32(body).to_bytes(4, "big") + body
    old = bytes(8) + len(message).to_bytes(4, "big") + message
    path = directory / "00000000000000000000.log"
    path.write_bytes(old)
    with pytest.raises(KafkaError, match=r"message format v1 .* copy the topic to a new one") as raised:
        open_log(directory)
    assert raised.value.code == ErrorCode.unsupported_for_message_format
    assert path.read_bytes() == old


def test_a_batch_larger_than_one_read_is_checked_whole(directory: Path) -> None:
    config = replace(SMALL, segment_bytes=1 << 24)
    log = open_log(directory, config)
    append(log, value=b"a" * 3_000_000)
    append(log, value=b"b" * 2_000_000)
    assert open_log(directory, config).log_end_offset == 2
    content = bytearray(log.segments.active.path.read_bytes())
    content[4_000_000] ^= 1
    log.segments.active.path.write_bytes(content)
    assert open_log(directory, config).log_end_offset == 1
