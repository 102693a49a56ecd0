"""The size of a table's rows, from its log."""

import json

import pytest

pytest.importorskip("pyspark")

from headrace.pipeline.engine.sources import bytes_per_row
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
