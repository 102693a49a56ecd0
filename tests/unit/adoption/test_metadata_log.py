"""The metadata log of a KRaft quorum is read completely or refused; only a crash may leave a torn end."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.adoption.metadata_log import DIRECTORY, read_metadata_log
from headrace.errors import KafkaError
from headrace.wire.batch import CONTROL_FLAG
from headrace.wire.records import RecordData, build_batch

FOOTER = b"\x00\x00\x00\x04"
HEADER = b"\x00\x00\x00\x03"


def batch(base_offset: int, *values: bytes, control: bytes | None = None) -> bytes:
    records = [RecordData(control, value, 0) for value in values]
    return build_batch(
        records, base_offset=base_offset, leader_epoch=1, attributes=0 if control is None else CONTROL_FLAG
    )


class Quorum:
    """A metadata log being written."""

    def __init__(self, log_directory: Path) -> None:
        self.path = log_directory
        self.directory = log_directory / DIRECTORY
        self.directory.mkdir()

    def segment(self, base_offset: int, *batches: bytes) -> Path:
        path = self.directory / f"{base_offset:020}.log"
        path.write_bytes(b"".join(batches))
        return path

    def snapshot(self, end_offset: int, *values: bytes, footer: bool = True) -> Path:
        path = self.directory / f"{end_offset:020}-{1:010}.checkpoint"
        parts = [batch(0, b"", control=HEADER), batch(1, *values)]
        path.write_bytes(b"".join([*parts, *([batch(9, b"", control=FOOTER)] if footer else [])]))
        return path

    def read(self, *, clean: bool = True) -> list[bytes]:
        log = read_metadata_log(self.path, clean_shutdown=clean)
        assert log is not None
        return log.records


@pytest.fixture
def quorum(tmp_path: Path) -> Quorum:
    return Quorum(tmp_path)


def test_a_directory_without_a_log_gives_none(tmp_path: Path) -> None:
    assert read_metadata_log(tmp_path, clean_shutdown=True) is None


def test_all_segments_are_read_without_control_records(quorum: Quorum) -> None:
    quorum.segment(0, batch(0, b"", control=b"\x00\x00\x00\x02"), batch(1, b"a", b"b"))
    quorum.segment(3, batch(3, b"c"))
    assert quorum.read() == [b"a", b"b", b"c"]


def test_a_snapshot_replaces_earlier_records(quorum: Quorum) -> None:
    quorum.snapshot(2, b"older")
    quorum.snapshot(4, b"a", b"b")
    quorum.segment(3, batch(3, b"in the snapshot"), batch(4, b"c"))
    (quorum.directory / "00000000000000000009-0000000001.checkpoint.part").write_bytes(b"torn")
    assert quorum.read() == [b"a", b"b", b"c"]


def test_a_torn_end_is_accepted_only_after_a_crash(quorum: Quorum) -> None:
    path = quorum.segment(0, batch(0, b"a"), batch(1, b"b"))
    path.write_bytes(path.read_bytes()[:-3])
    log = read_metadata_log(quorum.path, clean_shutdown=False)
    assert log is not None
    assert (log.records, log.end_offset) == ([b"a"], 1)
    assert log.torn_bytes > 0
    with pytest.raises(KafkaError, match="ends at offset 1, but was longer before"):
        quorum.read()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def cut_first_of_two(quorum: Quorum) -> None:
    cut(quorum.segment(0, batch(0, b"a")))
    quorum.segment(1, batch(1, b"b"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[65] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda quorum: flip(quorum.segment(0, batch(0, b"a"), batch(1, b"b"))), "has no valid batch at byte 0"),
        (lambda quorum: quorum.segment(5, batch(5, b"a")), "begins with offset 5, but offset 0 is missing"),
        (lambda quorum: quorum.segment(0, batch(0, b"a"), batch(2, b"b")), "has offset 2 at byte .*, not 1"),
        (
            cut_first_of_two,
            "follows 0{20}.log, which ends within a batch",
        ),
        (lambda quorum: cut(quorum.snapshot(1, b"a")), "is an incomplete snapshot"),
        (lambda quorum: quorum.snapshot(1, b"a", footer=False), "is an incomplete snapshot"),
        (
            lambda quorum: (quorum.segment(0, batch(0, b"a")), (quorum.directory / f"{5:020}.snapshot").touch()),
            "ends at offset 1, but was longer before",
        ),
        (lambda quorum: None, "ends at offset 0, but was longer before"),
    ],
)
def test_missing_and_damaged_data_is_refused(quorum: Quorum, damage: Callable[[Quorum], object], message: str) -> None:
    damage(quorum)
    with pytest.raises(KafkaError, match=message):
        quorum.read(clean=False)
