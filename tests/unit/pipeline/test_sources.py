"""The size of a table's rows, and the number of records in a batch, from logs and offsets."""

import json

import pytest

pytest.importorskip("pyspark")

from headrace.pipeline.engine.sources import bytes_per_row, has_unread, only_adds, records_between, rows_between
from tests.unit.pipeline.memory_files import MemoryFiles


def log(*commits: tuple[int, int]) -> MemoryFiles:
    """Return the log of a table whose commits add a file each, of a size and a number of rows."""
    files = MemoryFiles({"t/_delta_log/00000000000000000010.checkpoint.parquet": "x"})
    for version, (size, rows) in enumerate(commits):
        file = {"path": "x", "size": size, "stats": json.dumps({"numRecords": rows})}
        actions = [{"commitInfo": {}}, *([{"add": file}] if rows else [])]
        text = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions)
        files.write(f"t/_delta_log/{version:020}.json", text)
    return files


def test_rows_have_the_average_size_of_the_last_five_commits() -> None:
    assert bytes_per_row(log((1_000_000, 1), *[(100, 10)] * 4, (0, 0)), "t") == 10


def test_the_size_of_rows_is_unknown_without_any() -> None:
    assert bytes_per_row(log((0, 0)), "t") is None


def test_the_number_of_records_in_a_batch_is_that_between_its_offsets() -> None:
    before, after = {"a": {"0": 5, "1": 0}}, {"a": {"0": 7, "1": 4}, "b": {"0": 1}}
    assert records_between(before, after) == 7
    assert records_between(None, after) == 12


def at(version: int, *, starting: bool = False) -> dict[str, object]:
    return {"reservoirVersion": version, "index": -1, "isStartingVersion": starting}


def test_offsets_of_a_table_are_not_those_of_records() -> None:
    assert records_between(None, at(3)) is None


def test_the_number_of_rows_in_a_batch_is_that_of_its_commits() -> None:
    table = log((100, 10), (100, 20), (0, 0), (100, 40))
    assert rows_between(table, "t", at(1), at(3)) == 60
    assert rows_between(table, "t", None, at(1, starting=True)) == 30
    assert rows_between(table, "t", at(1, starting=True), at(2)) == 30
    assert rows_between(table, "t", at(3), at(4)) == 40


def test_the_number_of_rows_is_unknown_without_the_commits() -> None:
    table = log(*[(100, 10)] * 60)
    assert rows_between(table, "t", None, at(59)) is None
    table.delete("t/_delta_log/00000000000000000055.json")
    assert rows_between(table, "t", at(55), at(59)) is None


def test_a_table_has_unread_rows_after_the_commits_that_an_offset_includes() -> None:
    table = log((100, 10), (100, 20))
    assert has_unread(table, "t", None)
    assert has_unread(table, "t", at(1))
    assert not has_unread(table, "t", at(2))
    assert has_unread(table, "t", {**at(0), "index": 0})
    assert not has_unread(table, "t", {**at(1), "index": 0})


def test_the_rows_of_a_table_are_those_of_its_commits_if_these_are_complete_few_and_only_add() -> None:
    table = log((100, 10), (100, 20), (0, 0))
    assert only_adds(table, "t")
    assert not only_adds(log(*[(100, 10)] * 60), "t")
    table.delete("t/_delta_log/00000000000000000000.json")
    assert not only_adds(table, "t")


def test_a_table_with_any_other_kind_of_change_is_not_append_only() -> None:
    name = "t/_delta_log/00000000000000000001.json"
    for change in ("remove", "metaData", "protocol"):
        table = log((100, 10), (100, 20))
        table.write(name, f'{table.read(name)}\n{{"{change}":{{}}}}')
        assert not only_adds(table, "t"), change
