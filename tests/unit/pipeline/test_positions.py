"""Positions in topics of a job that reads a table, from the commits that it has read."""

import json
from typing import Any

from headrace.pipeline.engine.exactly_once.positions import of_table
from tests.unit.pipeline.memory_files import MemoryFiles

END = (1 << 63) - 101


def log(*ends: int | None) -> MemoryFiles:
    """Return the log of a table; None is a commit without positions, such as a compaction."""
    files = MemoryFiles({})
    for version, end in enumerate(ends):
        about = {} if end is None else {"userMetadata": json.dumps({"positions": {"log": {"0": end}}})}
        actions: list[Any] = [{"commitInfo": about}, {"add": {"path": "x"}}]
        files.write(f"t/_delta_log/{version:020}.json", "\n".join(map(json.dumps, actions)))
    return files


def offset(version: int, index: int = -100, starting: bool = False) -> dict[str, Any]:
    return {"reservoirVersion": version, "index": index, "isStartingVersion": starting}


def test_only_commits_that_were_read_to_their_end_count() -> None:
    files = log(10, 20, 30)
    assert of_table(files, "t", offset(2)) == {"log": {0: 20}}
    assert of_table(files, "t", offset(2, index=0)) == {"log": {0: 20}}
    assert of_table(files, "t", offset(2, index=END)) == {"log": {0: 30}}


def test_a_compaction_changes_no_position() -> None:
    assert of_table(log(10, None, None), "t", offset(3)) == {"log": {0: 10}}


def test_the_middle_of_the_first_reading_is_no_position() -> None:
    assert of_table(log(10, 20), "t", offset(1, index=5, starting=True)) == {}


def test_commits_that_are_cleaned_up_have_no_positions() -> None:
    assert of_table(MemoryFiles({}), "t", offset(7)) == {}
