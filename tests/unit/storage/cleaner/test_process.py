"""Errors of the cleaner process. Those of a real process are in tests/broker."""

import errno
from pathlib import Path

from headrace.storage.cleaner.process import CleaningFailedError, _error_of

LOG = Path("/data/t-0")


def test_an_error_of_the_logs_disk_keeps_its_number() -> None:
    for path in (None, "/data/t-0/00000000000000000000.log"):
        error = _error_of({"error": "Input/output error", "errno": errno.EIO, "path": path}, LOG)
        assert isinstance(error, OSError)
        assert (error.errno, error.filename) == (errno.EIO, path)


def test_another_error_is_a_failed_compaction() -> None:
    of_numpy = {"error": "Input/output error", "errno": errno.EIO, "path": "/usr/numpy.so"}
    errors = [_error_of(answer, LOG) for answer in ({"error": "it is damaged"}, of_numpy)]
    assert {type(error) for error in errors} == {CleaningFailedError}
    assert [str(error) for error in errors] == ["it is damaged", "/usr/numpy.so: Input/output error"]
