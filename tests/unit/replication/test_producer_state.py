"""Idempotent producers (KIP-98)."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.producer_state import WINDOW, ProducerState
from headrace.wire.batch import BatchHeader
from tests.support.examples import examples


def header(sequence: int, count: int = 1, *, epoch: int = 0, producer: int = 9, timestamp: int = 1000) -> BatchHeader:
    return BatchHeader(0, 0, 0, 2, 0, 0, count - 1, timestamp, timestamp, producer, epoch, sequence, count)


class Log:
    """A log that appends the batches which the state accepts."""

    def __init__(self) -> None:
        self.state = ProducerState()
        self.end = 0

    def send(self, batch: BatchHeader) -> int:
        """Return the base offset for the producer."""
        earlier = self.state.check(batch)
        if earlier is not None:
            return earlier.first_offset
        first = self.end
        self.end += batch.record_count
        self.state.update(batch, first, self.end - 1, batch.max_timestamp)
        return first


def refused(log: Log, batch: BatchHeader) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        log.send(batch)
    return caught.value.code


def test_a_repeated_batch_gets_its_first_offset_and_is_not_appended() -> None:
    log = Log()
    offsets = [log.send(header(sequence, 3)) for sequence in range(0, 15, 3)]

    assert [log.send(header(sequence, 3)) for sequence in range(0, 15, 3)] == offsets
    assert log.end == 15


def test_only_the_last_five_batches_are_remembered() -> None:
    log = Log()
    for sequence in range(WINDOW + 1):
        log.send(header(sequence))

    assert refused(log, header(0)) is ErrorCode.out_of_order_sequence_number


def test_a_gap_is_refused() -> None:
    log = Log()
    log.send(header(0))

    assert refused(log, header(2)) is ErrorCode.out_of_order_sequence_number


def test_an_unknown_producer_may_begin_with_any_sequence() -> None:
    assert Log().send(header(77)) == 0


def test_a_new_epoch_begins_with_sequence_0_and_fences_the_old_one() -> None:
    log = Log()
    log.send(header(0))
    assert refused(log, header(1, epoch=1)) is ErrorCode.out_of_order_sequence_number

    log.send(header(0, epoch=1))

    assert refused(log, header(1)) is ErrorCode.invalid_producer_epoch


def test_sequences_wrap_around() -> None:
    log = Log()
    log.send(header(2**31 - 2, 2))

    assert log.send(header(0)) == 2


def test_idle_producers_are_forgotten() -> None:
    log = Log()
    log.send(header(0, timestamp=1000))

    log.state.expire(now_ms=1999, expiration_ms=1000)
    assert len(log.state) == 1
    log.state.expire(now_ms=2000, expiration_ms=1000)
    assert len(log.state) == 0


def test_a_producer_with_a_full_window_takes_at_most_400_bytes() -> None:
    log = Log()
    count = 200
    tracemalloc.start()
    try:
        for sequence in range(WINDOW):
            for producer in range(count):
                log.send(header(sequence, producer=10**6 + producer, timestamp=10**12 + sequence))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / count < 400


def test_state_of_unwritten_batches_is_rolled_back() -> None:
    log = Log()
    log.send(header(0))
    before = {9: log.state.copy_of(9), 10: log.state.copy_of(10)}
    log.send(header(1))
    log.send(header(0, producer=10))

    log.state.put_back(before)

    assert [(producer_id, producer.last_sequence) for producer_id, producer in log.state.items()] == [(9, 0)]


@settings(max_examples=examples(25))
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), max_size=30))
def test_a_snapshot_restores_the_state(batches: list[tuple[int, int]]) -> None:
    log = Log()
    next_sequence = {1: 0, 2: 0, 3: 0}
    for producer, count in batches:
        log.send(header(next_sequence[producer], count, producer=producer))
        next_sequence[producer] += count
    restored = ProducerState()

    restored.restore(log.state.snapshot())

    assert restored.snapshot() == log.state.snapshot()
    for producer in {producer for producer, _ in batches}:
        assert restored.check(header(next_sequence[producer], producer=producer)) is None
        with pytest.raises(KafkaError):
            restored.check(header(next_sequence[producer] + 1, producer=producer))
