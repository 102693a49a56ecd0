import errno
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.replication import batch_rules
from headrace.replication import partition as partition_module
from headrace.replication.appends import ALL_REPLICAS, AppendResult, Batch
from headrace.replication.batch_rules import Accepted
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.verification import VerificationGuard
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.files.log_file import LogFile
from headrace.storage.log.config import LogConfig
from headrace.types import Buffer
from headrace.wire import batch as rb
from headrace.wire.records import RecordData, build_batch, iter_records
from tests.unit.replication.partition_setup import NOW, TP, Setup


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    setup = Setup(tmp_path)
    yield setup
    setup.replicas.close()


def batch(*values: bytes, key: bytes | None = b"k", timestamp: int = NOW, **header: int) -> bytes:
    return build_batch([RecordData(key, value, timestamp) for value in values], **header)  # type: ignore[arg-type]


def read_values(partition: Partition, offset: int) -> list[bytes | None]:
    part = partition.read(offset, 1 << 20, read_committed=False, min_one_batch=True)
    return [] if part is None else [record.value for record in iter_records(part.read()) if record.offset >= offset]


def stored(partition: Partition) -> bytes:
    part = partition.read(0, 1 << 20, read_committed=False, min_one_batch=True)
    assert part is not None
    return part.read()


def refused(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call()
    return caught.value.code


def test_offsets_are_consecutive_and_reads_begin_anywhere_within_the_log(setup: Setup) -> None:
    partition = setup.partition
    results = [partition.append_as_leader(batch(b"a", b"b"), now_ms=NOW) for _ in range(3)]

    assert [(result.base_offset, result.last_offset) for result in results] == [(0, 1), (2, 3), (4, 5)]
    assert read_values(partition, 3) == [b"b", b"a", b"b"]
    assert read_values(partition, 6) == []
    assert partition.high_watermark == 6
    for offset in (-1, 7, 100):
        code = refused(partial(partition.read, offset, 100, read_committed=False, min_one_batch=True))
        assert code is ErrorCode.offset_out_of_range


def test_batches_have_the_leader_epoch_and_a_correct_checksum(setup: Setup) -> None:
    partition = setup.reopen(7)
    partition.append_as_leader(batch(b"a"), now_ms=NOW)

    data = stored(partition)
    assert rb.parse_header(data).partition_leader_epoch == 7
    assert rb.batch_crc_ok(data, 0, len(data))
    assert partition.end_offset_for_epoch(7) == (7, 1)


def test_an_epoch_without_records_ends_where_the_current_one_begins(setup: Setup) -> None:
    partition = setup.reopen(2)
    assert [partition.end_offset_for_epoch(epoch) for epoch in (-1, 0, 1, 2, 3)] == [
        (-1, -1),
        (0, 0),
        (1, 0),
        (2, 0),
        (-1, -1),
    ]
    partition.append_as_leader(batch(b"a"), now_ms=NOW)
    partition = setup.reopen(5)
    assert [partition.end_offset_for_epoch(epoch) for epoch in (1, 2, 4, 5, 6)] == [
        (1, 0),
        (2, 1),
        (2, 1),
        (5, 1),
        (-1, -1),
    ]


@pytest.mark.parametrize("changes", [{"compression_type": "lz4"}, {"message_timestamp_type": "LogAppendTime"}], ids=str)
def test_internal_batches_are_stored_like_others(setup: Setup, changes: dict[str, object]) -> None:
    partition = setup.configure(**changes)
    assert [partition.append_own(batch(b"a", b"b"), NOW), partition.append_own(batch(b"c"), NOW)] == [0, 2]
    partition.append_as_leader(batch(b"d"), now_ms=NOW, internal=True)
    assert read_values(partition, 0) == [b"a", b"b", b"c", b"d"]
    assert partition.high_watermark == 4
    assert read_values(setup.reopen(), 0) == [b"a", b"b", b"c", b"d"]


def test_internal_batches_respect_the_limits(setup: Setup) -> None:
    partition = setup.configure(max_message_bytes=100)
    assert refused(lambda: partition.append_own(batch(b"a" * 100), NOW)) is ErrorCode.message_too_large
    partition = setup.configure(min_insync_replicas=2)
    partition.replica_count = 2
    assert refused(lambda: partition.append_own(batch(b"a"), NOW)) is ErrorCode.not_enough_replicas
    assert partition.log_end_offset == 0


def test_a_compacted_topic_refuses_records_without_a_key(setup: Setup) -> None:
    partition = setup.configure(cleanup_policy=frozenset({"compact"}))

    assert refused(lambda: partition.append_as_leader(batch(b"a", key=None), now_ms=NOW)) is ErrorCode.invalid_record
    partition.append_as_leader(batch(b"a"), now_ms=NOW)


def test_timestamps_too_far_from_now_are_refused(setup: Setup) -> None:
    partition = setup.configure(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000)

    for timestamp in (NOW - 1001, NOW + 1001):
        late = batch(b"a", timestamp=timestamp)
        assert refused(partial(partition.append_as_leader, late, now_ms=NOW)) is ErrorCode.invalid_timestamp
    partition.append_as_leader(batch(b"a", timestamp=NOW - 1000), now_ms=NOW)
    partition.append_as_leader(batch(b"a", timestamp=-1), now_ms=NOW)


def test_log_append_time_replaces_the_producers_timestamps(setup: Setup) -> None:
    partition = setup.configure(message_timestamp_type="LogAppendTime")

    result = partition.append_as_leader(batch(b"a", timestamp=5), now_ms=NOW)

    assert result.log_append_time == NOW
    assert [record.timestamp for record in iter_records(stored(partition))] == [NOW]


def test_acks_all_needs_min_insync_replicas(setup: Setup) -> None:
    partition = setup.configure(min_insync_replicas=2)
    partition.append_as_leader(batch(b"a"), now_ms=NOW)  # the topic has only one replica

    partition.replica_count = 3
    code = refused(lambda: partition.append_as_leader(batch(b"a"), now_ms=NOW))
    assert code is ErrorCode.not_enough_replicas
    partition.append_as_leader(batch(b"a"), now_ms=NOW, acks=1)


def numbered(sequence: int, size: int = 50, timestamp: int = NOW) -> bytes:
    return batch(bytes(size), timestamp=timestamp, producer_id=4, producer_epoch=0, base_sequence=sequence)


def outcomes(results: Sequence[AppendResult | KafkaError]) -> list[int | ErrorCode]:
    return [result.code if isinstance(result, KafkaError) else result.base_offset for result in results]


class Sent(NamedTuple):
    records: bytes
    acks: int
    guard: VerificationGuard | None = None


def requests(*batches: bytes) -> list[Batch]:
    return [Sent(records, ALL_REPLICAS) for records in batches]


def test_batches_of_one_call_are_checked_independently(setup: Setup) -> None:
    partition = setup.configure(max_message_bytes=1000)
    torn = bytearray(numbered(1))
    torn[-1] ^= 1
    sent = requests(numbered(0), bytes(torn), numbered(1), numbered(1), numbered(5), numbered(2, 5000), numbered(2))
    out_of_order = ErrorCode.out_of_order_sequence_number

    results = partition.append_all(sent, now_ms=NOW)

    too_large, corrupt = ErrorCode.message_too_large, ErrorCode.corrupt_message
    assert outcomes(results) == [0, corrupt, 1, 1, out_of_order, too_large, 2]
    assert partition.high_watermark == partition.log_end_offset == 3
    assert len(read_values(partition, 0)) == 3


@pytest.mark.parametrize("changes", [{"segment_bytes": 600}, {"segment_ms": 40}])
def test_appending_batches_together_gives_the_same_files(setup: Setup, tmp_path: Path, changes: dict[str, int]) -> None:
    sent = [numbered(sequence, timestamp=NOW + sequence % 7 * 10) for sequence in range(30)]
    other = Setup(tmp_path / "other")
    for item in (setup, other):
        item.configure(index_interval_bytes=200, **changes)
    for start in range(0, 30, 5):
        results = setup.partition.append_all(requests(*sent[start : start + 5]), now_ms=NOW)
        assert outcomes(results) == list(range(start, start + 5))
    for records in sent:
        other.partition.append_as_leader(records, now_ms=NOW)
    setup.replicas.close()
    other.replicas.close()

    def files(parent: Path) -> dict[str, bytes]:
        kinds = (".log", ".snapshot")
        return {path.name: path.read_bytes() for path in (parent / "t-0").iterdir() if path.suffix in kinds}

    assert files(tmp_path) == files(tmp_path / "other")
    assert len(files(tmp_path)) > 3
    for one in (setup, other):
        one.open()
    places = [
        [item.partition.log.reader.offset_for_timestamp(NOW + ahead) for ahead in range(70)] for item in (setup, other)
    ]
    assert places[0] == places[1]
    other.replicas.close()


@pytest.mark.parametrize("rolls", [False, True])
def test_batches_that_cannot_be_written_leave_no_trace(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, rolls: bool
) -> None:
    partition = setup.configure(segment_bytes=500 if rolls else 10**6)
    assert outcomes(partition.append_all(requests(numbered(0), numbered(1)), now_ms=NOW)) == [0, 1]
    append, room = LogFile.append, [2 if rolls else 0]

    def full(file: LogFile, buffers: Sequence[Buffer], size: int, position: int) -> None:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(file, buffers, size, position)

    monkeypatch.setattr(LogFile, "append", full)
    sent = requests(*map(numbered, range(2, 6)), numbered(1), numbered(3))
    results = partition.append_all(sent, now_ms=NOW)

    failed = ErrorCode.kafka_storage_error
    assert outcomes(results) == ([2, 3, failed, failed, 1, 3] if rolls else [failed] * 4 + [1, failed])
    assert partition.high_watermark == partition.log_end_offset == (4 if rolls else 2)
    monkeypatch.undo()
    assert outcomes(partition.append_all(sent, now_ms=NOW)) == [2, 3, 4, 5, 1, 3]
    assert len(read_values(partition, 4)) == 2


def test_an_exception_between_batches_leaves_no_trace(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = setup.configure(cleanup_policy="compact")
    sent = requests(numbered(0), numbered(1))
    seen: list[object] = []

    def accept(records: bytes, config: LogConfig, now_ms: int, *, internal: bool) -> Accepted:
        seen.append(records)
        if len(seen) == 2:
            raise MemoryError
        return batch_rules.accept(records, config, now_ms, internal=internal)

    with monkeypatch.context() as patch:
        patch.setattr(partition_module, "accept", accept)
        with pytest.raises(MemoryError):
            partition.append_all(sent, now_ms=NOW)
    assert partition.log_end_offset == 0
    assert outcomes(partition.append_all(sent, now_ms=NOW)) == [0, 1]
    assert partition.log_end_offset == 2


def test_deleted_records_cannot_be_read_and_stay_deleted(setup: Setup) -> None:
    for value in (b"a", b"b", b"c"):
        setup.partition.append_as_leader(batch(value), now_ms=NOW)

    assert setup.partition.delete_records(2) == 2
    assert setup.partition.delete_records(1) == 2
    partition = setup.reopen()

    assert partition.log_start_offset == 2
    assert read_values(partition, 2) == [b"c"]
    assert refused(lambda: partition.delete_records(4)) is ErrorCode.offset_out_of_range
    assert partition.delete_records(-1) == 3


def test_records_of_a_compacted_topic_cannot_be_deleted(setup: Setup) -> None:
    partition = setup.configure(cleanup_policy=frozenset({"compact"}))

    assert refused(lambda: partition.delete_records(0)) is ErrorCode.policy_violation


def test_a_directory_of_another_topic_id_is_refused(setup: Setup) -> None:
    setup.replicas.close()
    setup.replicas = ReplicaManager(LogDirs.open([setup.directory], broker_id=0), lambda _: setup.config)

    code = refused(lambda: setup.replicas.become_leader(TP, UUID(int=6), 0))
    assert code is ErrorCode.inconsistent_topic_id


def test_other_leader_epochs_of_clients_are_refused(setup: Setup) -> None:
    partition = setup.reopen(5)

    partition.check_leader_epoch(-1)
    partition.check_leader_epoch(5)
    assert refused(lambda: partition.check_leader_epoch(4)) is ErrorCode.fenced_leader_epoch
    assert refused(lambda: partition.check_leader_epoch(6)) is ErrorCode.unknown_leader_epoch
