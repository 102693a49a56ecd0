"""The driver collects a small batch before its transaction begins."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from headrace.pipeline.engine.exactly_once import changelog
from headrace.pipeline.engine.exactly_once.publishing import Record


def rows() -> tuple[Any, list[str]]:
    """Return a frame with one record, and the list of calls that have read it."""
    calls: list[str] = []
    found = [("t", "key", None)]

    def read(name: str) -> Any:
        def called() -> Any:
            calls.append(name)
            return iter(found)

        return called

    return SimpleNamespace(collect=read("all"), toLocalIterator=read("by partition")), calls


@pytest.mark.parametrize(("count", "call"), [(100_000, "all"), (100_001, "by partition")])
def test_a_small_batch_is_collected_before_its_transaction_begins(count: int, call: str) -> None:
    frame, calls = rows()
    records = changelog.collected(frame, count)
    assert calls == [call]
    assert list(records) == [Record("t", b"key", None)]
