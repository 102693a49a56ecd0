"""The ledger: written before a batch, read after a crash."""

import json

import pytest

from headrace.pipeline.engine.exactly_once.ledger import Entry, Ledger
from headrace.pipeline.engine.reached import Reached
from headrace.pipeline.errors import PipelineError
from tests.unit.pipeline.memory_files import MemoryFiles


def entry(batch: int, *, end: int = 7, query: str = "first", version: int = 1) -> Entry:
    return Entry(
        job="views",
        version=version,
        query=query,
        batch=batch,
        source_from={"log": {"0": 10}},
        source_to={"log": {"0": 20}},
        topic_ids={"log": "id"},
        output_ends={"views": {0: end, 1: 3}},
        reached=Reached(latest={"id/0": 1_000}, arrived={"id/0": 2_000}, settled=1_000),
    )


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles({})


@pytest.fixture
def ledger(files: MemoryFiles) -> Ledger:
    return Ledger(files, "s3a://bucket/checkpoints/", "views")


def test_an_entry_is_a_json_file_of_its_job_and_batch(ledger: Ledger, files: MemoryFiles) -> None:
    ledger.record(entry(4))
    [(uri, text)] = files.items()
    assert uri == "s3a://bucket/checkpoints/ledger/views/4.json"
    assert json.loads(text)["source_to"] == {"log": {"0": 20}}
    assert ledger.read(4) == entry(4)


def test_a_repeated_batch_keeps_the_output_offsets_of_its_first_attempt(ledger: Ledger) -> None:
    ledger.record(entry(4, end=7))
    assert ledger.record(entry(4, end=9)).output_ends == {"views": {0: 7, 1: 3}}


def test_the_batch_of_another_checkpoint_replaces_the_entry(ledger: Ledger) -> None:
    ledger.record(entry(4, end=7))
    for changed in (entry(4, end=8, query="second"), entry(4, end=9, query="second", version=2)):
        assert ledger.record(changed) == ledger.read(4) == changed


def test_the_last_entry_is_that_of_the_highest_batch_with_a_complete_file(ledger: Ledger, files: MemoryFiles) -> None:
    assert ledger.last() is None
    for batch in (9, 10):
        ledger.record(entry(batch))
    files.write("s3a://bucket/checkpoints/ledger/views/11.json.tmp", "{")
    assert ledger.last() == entry(10)


def test_the_first_batch_of_a_checkpoint_starts_a_new_ledger(ledger: Ledger) -> None:
    for batch in (8, 9):
        ledger.record(entry(batch))
    ledger.record(entry(0, version=2, query="second"))
    assert ledger.last() == entry(0, version=2, query="second")
    assert ledger.read(9) is None


def test_the_last_hundred_entries_are_kept(ledger: Ledger, files: MemoryFiles) -> None:
    for batch in range(102):
        ledger.record(entry(batch))
    assert len(files) == 100
    assert ledger.read(1) is None


def test_a_damaged_entry_is_named(ledger: Ledger, files: MemoryFiles) -> None:
    files.write("s3a://bucket/checkpoints/ledger/views/4.json", '{"batch": 4')
    with pytest.raises(
        PipelineError, match=r"^s3a://bucket/checkpoints/ledger/views/4\.json is damaged .* restore the checkpoints"
    ):
        ledger.read(4)
