from typing import Any

import pytest

pytest.importorskip("pyspark")
from py4j.protocol import Py4JNetworkError
from pyspark.errors import AnalysisException

from headrace.pipeline.engine.monitoring import failures
from headrace.pipeline.errors import PipelineError
from tests.unit.pipeline.java_errors import JavaError

CALLED = "An error occurred while calling o57.commit."


def test_the_first_line_says_what_happened() -> None:
    assert failures.first_line(ValueError("\n  no such page\nmore")) == "no such page"
    assert failures.first_line(ValueError()) == "ValueError"
    disk_full = JavaError(f"{CALLED}\n: java.io.IOException: disk full\n\tat a.b.c")
    assert failures.first_line(disk_full) == "java.io.IOException: disk full"
    assert failures.first_line(JavaError(CALLED)) == CALLED
    assert failures.first_line(JavaError(None)) == "JavaError"


def explained(error: Any) -> str:
    with pytest.raises(PipelineError) as raised, failures.explained():
        raise error
    return str(raised.value)


def test_errors_of_spark_become_a_line() -> None:
    assert explained(JavaError(f"{CALLED}\n: java.io.IOException: disk full")) == "java.io.IOException: disk full"
    assert explained(AnalysisException("no such table\nat line 1")) == "no such table"
    ended = explained(Py4JNetworkError("Answer from Java side is empty"))
    assert ended.startswith("Spark's Java process has ended")
    assert "\n" not in ended


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError), failures.explained():
        raise ZeroDivisionError
