"""Source offsets in Spark's checkpoint, and a topic that is to be read from its beginning."""

import json

import pytest

from headrace.pipeline.engine.exactly_once.checkpoint import Checkpoint
from headrace.pipeline.errors import PipelineError
from tests.unit.pipeline.memory_files import MemoryFiles


def offsets(end: int) -> str:
    return "\n".join(["v1", '{"batchWatermarkMs":0}', json.dumps({"a": {"0": end}, "b": {"0": end}})])


def checkpoint(batches: int, committed: int) -> tuple[Checkpoint, MemoryFiles]:
    files = {f"c/raw-1/offsets/{batch}": offsets(10 * batch + 10) for batch in range(batches)}
    files |= {f"c/raw-1/commits/{batch}": "v1\n{}" for batch in range(committed)}
    found = MemoryFiles({**files, "c/raw-1/sources/0/0": 'v1\n{"a": {"0": 5}, "b": {"0": 5}}'})
    return Checkpoint(found, "c", "raw", 1), found


def test_a_batch_starts_where_the_one_before_it_ended() -> None:
    found, _ = checkpoint(2, 2)
    assert found.source_offsets(0) == (None, {"a": {"0": 10}, "b": {"0": 10}})
    assert found.source_offsets(1) == ({"a": {"0": 10}, "b": {"0": 10}}, {"a": {"0": 20}, "b": {"0": 20}})


def test_a_missing_batch_is_an_error() -> None:
    with pytest.raises(PipelineError, match="offsets/1 is missing or damaged"):
        checkpoint(1, 1)[0].source_offsets(1)


def test_the_offsets_of_an_interrupted_batch_may_not_have_been_reached() -> None:
    assert checkpoint(2, 2)[0].last_offsets() == {"a": {"0": 20}, "b": {"0": 20}}
    assert checkpoint(2, 1)[0].last_offsets() is None
    assert checkpoint(0, 0)[0].last_offsets() is None


def test_a_new_topic_is_read_from_its_beginning_and_the_others_go_on() -> None:
    found, _ = checkpoint(3, 3)
    found.move({"a": {0: 0, 1: 0}})
    assert found.source_offsets(2)[1] == {"a": {"0": 0, "1": 0}, "b": {"0": 30}}


def test_an_interrupted_batch_is_repeated_without_the_topic_that_is_gone() -> None:
    found, _ = checkpoint(3, 2)
    found.move({"a": {0: 0}})
    before, after = found.source_offsets(2)
    assert (before, after) == ({"a": {"0": 0}, "b": {"0": 20}}, {"a": {"0": 0}, "b": {"0": 30}})


def test_the_next_batch_begins_where_the_last_complete_one_ended() -> None:
    assert checkpoint(3, 3)[0].next_offsets() == {"a": {0: 30}, "b": {0: 30}}
    assert checkpoint(3, 2)[0].next_offsets() == {"a": {0: 20}, "b": {0: 20}}
    assert checkpoint(1, 0)[0].next_offsets() == {"a": {0: 5}, "b": {0: 5}}
    assert Checkpoint(MemoryFiles({}), "c", "raw", 1).next_offsets() == {}


def test_offsets_are_skipped_also_in_an_interrupted_batch() -> None:
    found, _ = checkpoint(3, 2)
    found.skip_to({"a": {0: 25, 1: 7}})
    before, after = found.source_offsets(2)
    assert before == {"a": {"0": 25, "1": 7}, "b": {"0": 20}}
    # The records that are left stay in their batch, because its tables may contain them already.
    assert after == {"a": {"0": 30, "1": 7}, "b": {"0": 30}}


def test_offsets_are_skipped_before_the_first_batch_is_complete() -> None:
    found, files = checkpoint(1, 0)
    found.skip_to({"a": {0: 8}})
    assert json.loads(files["c/raw-1/sources/0/0"].splitlines()[1]) == {"a": {"0": 8}, "b": {"0": 5}}
    assert found.source_offsets(0)[1] == {"a": {"0": 10}, "b": {"0": 10}}
