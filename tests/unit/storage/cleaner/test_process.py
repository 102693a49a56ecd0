"""Errors of the cleaner process. Those of a real process are in tests/broker."""

import errno
from pathlib import Path

import pytest

from headrace.storage.cleaner.process import CleaningFailedError, _error_of

LOG = Path("/data/t-0")


@pytest.mark.parametrize("path", [None, "/data/t-0/00000000000000000000.log"])
def test_an_error_of_the_logs_disk_keeps_its_number(path: str | None) -> None:
    error = _error_of({"error": "Input/output error", "errno": errno.EIO, "path": path}, LOG)
    assert isinstance(error, OSError)
    assert (error.errno, error.filename) == (errno.EIO, path)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"error": "it is damaged"}, "it is damaged"),
        (
            {"error": "Input/output error", "errno": errno.EIO, "path": "/usr/numpy.so"},
            "/usr/numpy.so: Input/output error",
        ),
    ],
)
def test_another_error_is_a_failed_compaction(answer: dict[str, object], text: str) -> None:
    error = _error_of(answer, LOG)
    assert isinstance(error, CleaningFailedError)
    assert str(error) == text
