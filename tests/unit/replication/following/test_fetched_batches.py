from collections.abc import Sequence

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.following.fetched_batches import Run, UnexpectedOffsetError, runs_of
from headrace.wire.batch import HEADER_SIZE, seal
from headrace.wire.records import RecordData, build_batch

EPOCH = 9


def batch(base_offset: int, count: int = 1, *, epoch: int = 0, timestamp: int = 1000, producer_id: int = -1) -> bytes:
    records = [RecordData(b"k", b"v", timestamp) for _ in range(count)]
    return build_batch(records, base_offset=base_offset, leader_epoch=epoch, producer_id=producer_id)


def read(*batches: bytes, next_offset: int = 0) -> list[Run]:
    return runs_of(memoryview(b"".join(batches)), next_offset, EPOCH)


def offsets(runs: Sequence[Run]) -> list[list[int]]:
    return [[placed.header.base_offset for placed in run.batches] for run in runs]


def test_batches_of_one_epoch_are_one_run() -> None:
    first, second = batch(0, 2), batch(2, 3)

    (run,) = read(first, second)

    assert [(placed.start, placed.end) for placed in run.batches] == [
        (0, len(first)),
        (len(first), len(first) + len(second)),
    ]


def test_a_new_epoch_begins_a_new_run() -> None:
    runs = read(batch(0, epoch=1), batch(1, epoch=1), batch(2, epoch=4))

    assert [run.epoch for run in runs] == [1, 4]
    assert offsets(runs) == [[0, 1], [2]]


def test_gaps_from_compaction_are_accepted() -> None:
    assert offsets(read(batch(7), batch(20), next_offset=5)) == [[7, 20]]


def test_an_empty_batch_from_compaction_is_accepted() -> None:
    empty = bytearray(batch(4, 3)[:HEADER_SIZE])
    empty[8:12] = (HEADER_SIZE - 12).to_bytes(4, "big")
    empty[57:61] = bytes(4)
    seal(empty)

    (run,) = read(bytes(empty), batch(7), next_offset=4)

    assert [placed.header.record_count for placed in run.batches] == [0, 1]


def test_a_torn_last_batch_is_ignored() -> None:
    last = batch(1)
    assert {len(read(batch(0), last[:kept])[0].batches) for kept in range(1, len(last))} == {1}
    assert read(batch(0)[:-1]) == []


def changed(data: bytes, place: slice, new: bytes) -> bytes:
    out = bytearray(data)
    out[place] = new
    return bytes(out)


def test_damaged_batches_and_older_message_formats_are_refused() -> None:
    intact = batch(1)
    wrong = {
        "the checksum": (changed(intact, slice(-1, None), b"?"), ErrorCode.corrupt_message),
        "a length below the header": (changed(intact, slice(8, 12), bytes([0, 0, 0, 20])), ErrorCode.corrupt_message),
        "an older format": (changed(intact, slice(16, 17), b"\x01"), ErrorCode.unsupported_for_message_format),
    }
    for what, (data, code) in wrong.items():
        with pytest.raises(KafkaError) as caught:
            pytest.fail(f"{what}: {read(batch(0), data)}")
        assert caught.value.code is code, what


def test_batches_that_do_not_ascend_are_refused() -> None:
    for base_offset in (3, 4):
        with pytest.raises(UnexpectedOffsetError):
            read(batch(3, 2), batch(base_offset))


def test_a_batch_before_the_end_of_the_log_is_refused() -> None:
    with pytest.raises(UnexpectedOffsetError, match="offsets 4 to 6, but the log ends at 5"):
        read(batch(4, 3), next_offset=5)


def test_batches_of_an_epoch_that_the_follower_does_not_know_yet_are_left_for_later() -> None:
    assert offsets(read(batch(0, epoch=EPOCH), batch(1, epoch=EPOCH + 1))) == [[0]]


def test_the_largest_timestamp_has_the_last_offset_of_its_first_batch() -> None:
    (run,) = read(batch(0, 2, timestamp=5), batch(2, 3, timestamp=9), batch(5, timestamp=9), batch(6, timestamp=7))

    assert (run.max_timestamp, run.offset_of_max_timestamp) == (9, 4)


def test_batches_of_producers_are_listed() -> None:
    (run,) = read(batch(0), batch(1, producer_id=8), batch(2))

    assert [placed.header.base_offset for placed in run.of_producers] == [1]
