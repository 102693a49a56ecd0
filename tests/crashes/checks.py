"""What must be true of a partition that was opened after a crash."""

from collections.abc import Sequence

from headrace.replication.partition import Partition
from headrace.replication.producer_state import ProducerState
from headrace.wire.batch import batch_crc_ok
from headrace.wire.records import Record, batch_headers, iter_records
from tests.crashes.story import Batch, BegunAnew, Expected, State, Story


def served(partition: Partition) -> list[Batch]:
    """All that a consumer gets, from the log start offset on."""
    offset = partition.log_start_offset
    found: list[Batch] = []
    while (part := partition.read(offset, 700, read_committed=False, min_one_batch=True)) is not None:
        data = part.read()
        assert len(data) == part.size, f"a read at {offset} gave {len(data)} of {part.size} bytes"
        whole = [(position, header) for position, header in batch_headers(data)]
        assert whole, f"a read at {offset} gave no whole batch"
        for position, header in whole:
            assert header.next_offset > offset, f"a read at {offset} gave {header.base_offset}"
            assert batch_crc_ok(data, position, header.size), f"garbage at {offset}"
            found.append(Batch(header, data[position : position + header.size]))
        offset = whole[-1][1].next_offset
    return found


def check(partition: Partition, story: Story, expected: Expected, *, kernel_survived: bool) -> State:
    """Raises AssertionError; what was found."""
    found = served(partition)
    end = partition.log_end_offset
    at_least = expected.written if kernel_survived else expected.flushed
    assert end >= at_least, f"the log ends at {end}, before {at_least}, which was safe"
    if found:
        assert found[-1].header.next_offset <= end
    if story.compacted:
        state = _check_table(found, end, expected)
    else:
        state = _check_run(partition, found, end, expected)
    _check_epochs(partition, found)
    _check_indexes(partition, found)
    content = tuple(each for each in state.content if each.header.last_offset < end)
    _check_producers(partition, content if story.compacted else found)
    flushed = min(expected.flushed, end) if kernel_survived else end
    return State(content, max(state.start, partition.log_start_offset), end, flushed, expected.start_kept)


def _check_run(partition: Partition, found: list[Batch], end: int, expected: Expected) -> State:
    start = partition.log_start_offset
    assert start >= expected.start_kept, f"the log starts at {start}, before {expected.start_kept}, which was kept"
    problems = []
    for state in (expected.before, expected.after):
        anywhere = isinstance(expected.under_way, BegunAnew)
        problem = _no_run_of(state, found, start, end, expected.start_kept, anywhere=anywhere)
        if problem is None:
            return state
        problems.append(problem)
    raise AssertionError(f"{problems[0]}; or else {problems[1]}")


def _no_run_of(
    state: State, found: list[Batch], start: int, end: int, start_kept: int, *, anywhere: bool
) -> str | None:
    if start > state.start and not anywhere:
        return f"the log starts at {start}, not at {state.start}"
    content = [each.data for each in state.content if start < each.header.next_offset <= end]
    if [each.data for each in found] != content:
        have = [(each.header.base_offset, each.header.partition_leader_epoch) for each in found]
        want = [(each.header.base_offset, each.header.partition_leader_epoch) for each in state.content]
        return f"from {start} to {end} there is {have}, which is no run of {want}"
    edges = {edge for each in state.content for edge in (each.header.base_offset, each.header.next_offset)}
    if end not in edges | {state.start, state.end, start_kept} and not (anywhere and not found):
        return f"the log ends at {end}, where no batch does"
    return None


def _records(batches: tuple[Batch, ...] | list[Batch]) -> list[Record]:
    return [record for each in batches if each.header.record_count for record in iter_records(each.data)]


def _check_table(found: list[Batch], end: int, expected: Expected) -> State:
    state = expected.after if end > expected.before.end else expected.before
    written = _records([each for each in state.content if each.header.last_offset < end])
    records = _records(found)
    assert [each.offset for each in records] == sorted({each.offset for each in records}), "offsets out of order"
    originals = {each.offset: each for each in written}
    for record in records:
        assert originals.get(record.offset) == record, f"what is at {record.offset} was not written there"
    newest = {each.key: each for each in written}
    have = {each.key: each for each in records}
    assert have == newest, f"keys {[key for key in newest if have.get(key) != newest[key]]} lost their newest records"
    return state


def _check_epochs(partition: Partition, found: list[Batch]) -> None:
    epochs = partition.log.leader_epochs
    for header, _ in found:
        known = epochs.epoch_for(header.base_offset)
        if header.base_offset >= partition.log_start_offset:
            assert known == header.partition_leader_epoch, f"epoch {known} is said of {header}: {epochs.entries}"
    entries = epochs.entries
    assert all(each.start_offset <= partition.log_end_offset for each in entries)


def _check_indexes(partition: Partition, batches: list[Batch]) -> None:
    """Every entry leads to a batch, and timestamps are found as in a walk through the log."""
    log = partition.log
    for segment in log.segments.ordered:
        positions = dict(segment.headers())
        for relative, position in segment.index.pairs():
            assert position in positions, f"{segment.index.path} leads to byte {position}, where no batch begins"
            assert positions[position].last_offset == segment.base_offset + relative, f"{segment.index.path} lies"
        reached = {each.last_offset: each for each in positions.values()}
        last = -1
        for timestamp, relative in segment.time_index.pairs():
            header = reached.get(segment.base_offset + relative)
            assert header is not None, f"{segment.time_index.path} leads to offset {segment.base_offset + relative}"
            assert header.max_timestamp == timestamp, f"{segment.time_index.path} lies about {timestamp}"
            assert timestamp > last, f"{segment.time_index.path} does not ascend"
            last = timestamp
        newest = max((each.max_timestamp for each in positions.values() if each.max_timestamp >= 0), default=-1)
        assert segment.max_timestamp == newest, f"{segment.path}: {segment.max_timestamp} instead of {newest}"
    records = [each for each in _records(batches) if each.offset >= log.log_start_offset]
    for timestamp in {each.header.max_timestamp for each in batches}:
        found = log.reader.offset_for_timestamp(timestamp)
        first = next((each.offset for each in records if each.timestamp >= timestamp), None)
        assert (None if found is None else found[1]) == first, f"timestamp {timestamp} is not found at {first}"


def _check_producers(partition: Partition, content: Sequence[Batch]) -> None:
    replayed = ProducerState()
    for header, _ in content:
        replayed.replay(header)
    want, have = _last_batches(replayed), _last_batches(partition.producers)
    for producer_id, entry in want.items():
        assert have.get(producer_id) == entry, f"producer {producer_id} is {have.get(producer_id)}, not {entry}"
    for producer_id in have.keys() - want.keys():
        # what retention took the batches of
        assert have[producer_id][2] < partition.log_start_offset, f"unknown producer {have[producer_id]}"


def _last_batches(producers: ProducerState) -> dict[int, tuple[int, int, int]]:
    return {each.producer_id: (each.epoch, each.last_sequence, each.last_offset) for each in producers.snapshot()}
