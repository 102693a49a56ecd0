from typing import Any

import pytest

pytest.importorskip("pyspark")

from headrace.pipeline.engine import run
from headrace.pipeline.errors import PipelineError
from tests.unit.pipeline.memory_files import MemoryFiles


class ReadOnlyFiles(MemoryFiles):
    def write(self, uri: str, text: str) -> None:
        raise OSError(30, "Read-only file system")


def check(files: Any) -> None:
    run._check_writable(files, ("/lake", "/checkpoints"))


def test_a_check_leaves_nothing() -> None:
    files = MemoryFiles({})
    check(files)
    assert files.names("/lake") == files.names("/checkpoints") == []


def test_a_lake_that_cannot_be_written_is_named() -> None:
    with pytest.raises(PipelineError, match="cannot write to /lake: read-only file system"):
        check(ReadOnlyFiles({}))
