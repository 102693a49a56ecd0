"""Checks of a partition opened after a crash."""

from collections.abc import Sequence

from headrace.replication.partition import Partition
from headrace.replication.producer_state import ProducerState
from headrace.wire.batch import batch_crc_ok
from headrace.wire.records import Record, batch_headers, iter_records
from tests.crashes.story import Batch, Emptied, Expected, State, Story


def served(partition: Partition) -> list[Batch]:
    """Return the batches a consumer reads from the log start offset."""
    offset = partition.log_start_offset
    found: list[Batch] = []
    while (part := partition.read(offset, 700, read_committed=False, min_one_batch=True)) is not None:
        data = part.read()
        assert len(data) == part.size, f"a read at {offset} returned {len(data)} of {part.size} bytes"
        whole = [(position, header) for position, header in batch_headers(data)]
        assert whole, f"a read at {offset} returned no complete batch"
        for position, header in whole:
            assert header.next_offset > offset, f"a read at {offset} returned the batch at {header.base_offset}"
            assert batch_crc_ok(data, position, header.size), f"corrupt batch in the read at {offset}"
            found.append(Batch(header, data[position : position + header.size]))
        offset = whole[-1][1].next_offset
    return found


def check(partition: Partition, story: Story, expected: Expected, *, kernel_survived: bool) -> State:
    """Return the recovered state. Raises AssertionError if `expected` does not allow it."""
    found = served(partition)
    end = partition.log_end_offset
    at_least = expected.written if kernel_survived else expected.flushed
    assert end >= at_least, f"the log ends at {end}, but {at_least} was safe"
    if found:
        assert found[-1].header.next_offset <= end
    if story.compacted:
        state = _check_table(found, end, expected)
    else:
        state = _check_contiguous(partition, found, end, expected)
    _check_epochs(partition, found)
    _check_indexes(partition, found)
    content = tuple(item for item in state.content if item.header.last_offset < end)
    _check_producers(partition, content if story.compacted else found)
    flushed = min(expected.flushed, end) if kernel_survived else end
    start = max(state.start, partition.log_start_offset)
    return State(content, start, end, flushed, expected.start_kept, state.high_watermarks)


def check_high_watermark(found: int, allowed: frozenset[int]) -> frozenset[int]:
    """Check the saved high watermark, and return it for the next life. A later one would hide lost records."""
    assert found in allowed, f"the high watermark {found} was never saved, only {sorted(allowed)}"
    return frozenset({0, found})


def _check_contiguous(partition: Partition, found: list[Batch], end: int, expected: Expected) -> State:
    start = partition.log_start_offset
    assert start >= expected.start_kept, f"the log starts at {start}, but {expected.start_kept} was saved"
    problems = []
    for state in (expected.before, expected.after):
        emptying = isinstance(expected.under_way, Emptied)
        problem = _mismatch(state, found, start, end, expected.start_kept, emptying=emptying)
        if problem is None:
            return state
        problems.append(problem)
    raise AssertionError(f"before the step: {problems[0]}; after it: {problems[1]}")


def _mismatch(state: State, found: list[Batch], start: int, end: int, start_kept: int, *, emptying: bool) -> str | None:
    if start > state.start and not emptying:
        return f"the log starts at {start}, not at {state.start}"
    content = [item.data for item in state.content if start < item.header.next_offset <= end]
    if [item.data for item in found] != content:
        have = [(item.header.base_offset, item.header.partition_leader_epoch) for item in found]
        want = [(item.header.base_offset, item.header.partition_leader_epoch) for item in state.content]
        return f"offsets {start} to {end} hold {have}, not a run of {want}"
    edges = {edge for item in state.content for edge in (item.header.base_offset, item.header.next_offset)}
    if end not in edges | {state.start, state.end, start_kept} and not (emptying and not found):
        return f"the log ends at {end}, not at the end of a batch"
    return None


def _records(batches: tuple[Batch, ...] | list[Batch]) -> list[Record]:
    return [record for batch in batches if batch.header.record_count for record in iter_records(batch.data)]


def _check_table(found: list[Batch], end: int, expected: Expected) -> State:
    state = expected.after if end > expected.before.end else expected.before
    written = _records([item for item in state.content if item.header.last_offset < end])
    records = _records(found)
    assert [item.offset for item in records] == sorted({item.offset for item in records}), "offsets out of order"
    originals = {item.offset: item for item in written}
    for record in records:
        assert originals.get(record.offset) == record, f"the record at {record.offset} was not written there"
    newest = {item.key: item for item in written}
    have = {item.key: item for item in records}
    assert have == newest, f"keys {[key for key in newest if have.get(key) != newest[key]]} lost their newest records"
    return state


def _check_epochs(partition: Partition, found: list[Batch]) -> None:
    epochs = partition.log.leader_epochs
    for header, _ in found:
        known = epochs.epoch_for(header.base_offset)
        if header.base_offset >= partition.log_start_offset:
            assert known == header.partition_leader_epoch, f"epoch {known} for {header}: {epochs.entries}"
    entries = epochs.entries
    assert all(entry.start_offset <= partition.log_end_offset for entry in entries)


def _check_indexes(partition: Partition, batches: list[Batch]) -> None:
    """Check that index entries point at batches and that timestamp lookups agree with a scan."""
    log = partition.log
    for segment in log.segments.ordered:
        positions = dict(segment.headers())
        for relative, position in segment.index.pairs():
            assert position in positions, f"{segment.index.path} points to byte {position}, which starts no batch"
            assert positions[position].last_offset == segment.base_offset + relative, (
                f"{segment.index.path}: wrong offset"
            )
        reached = {item.last_offset: item for item in positions.values()}
        last = -1
        for timestamp, relative in segment.time_index.pairs():
            header = reached.get(segment.base_offset + relative)
            assert header is not None, f"{segment.time_index.path} points to offset {segment.base_offset + relative}"
            assert header.max_timestamp == timestamp, f"{segment.time_index.path}: wrong offset for {timestamp}"
            assert timestamp > last, f"{segment.time_index.path} does not ascend"
            last = timestamp
        newest = max((item.max_timestamp for item in positions.values() if item.max_timestamp >= 0), default=-1)
        assert segment.max_timestamp == newest, f"{segment.path}: max timestamp {segment.max_timestamp}, not {newest}"
    records = [record for record in _records(batches) if record.offset >= log.log_start_offset]
    for timestamp in {batch.header.max_timestamp for batch in batches}:
        found = log.reader.offset_for_timestamp(timestamp)
        first = next((record.offset for record in records if record.timestamp >= timestamp), None)
        assert (None if found is None else found[1]) == first, f"timestamp {timestamp}: expected offset {first}"


def _check_producers(partition: Partition, content: Sequence[Batch]) -> None:
    replayed = ProducerState()
    for header, _ in content:
        replayed.replay(header)
    want, have = _last_batches(replayed), _last_batches(partition.producers)
    for producer_id, entry in want.items():
        assert have.get(producer_id) == entry, f"producer {producer_id} is {have.get(producer_id)}, not {entry}"
    for producer_id in have.keys() - want.keys():
        # retention deleted its batches
        assert have[producer_id][2] < partition.log_start_offset, f"unknown producer {have[producer_id]}"


def _last_batches(producers: ProducerState) -> dict[int, tuple[int, int, int]]:
    return {
        producer.producer_id: (producer.epoch, producer.last_sequence, producer.last_offset)
        for producer in producers.snapshot()
    }
