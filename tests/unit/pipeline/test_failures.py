from typing import Any

import pytest

pytest.importorskip("pyspark")
from py4j.protocol import Py4JNetworkError
from pyspark.errors import AnalysisException

from headrace.pipeline.engine.monitoring import failures
from headrace.pipeline.errors import PipelineError
from tests.unit.pipeline.java_errors import JavaError

CALLED = "An error occurred while calling o57.commit."


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("\n  no such page\nmore"), "no such page"),
        (ValueError(), "ValueError"),
        (JavaError(f"{CALLED}\n: java.io.IOException: disk full\n\tat a.b.c"), "java.io.IOException: disk full"),
        (JavaError(CALLED), CALLED),
        (JavaError(None), "JavaError"),
    ],
)
def test_the_first_line_says_what_happened(error: Exception, line: str) -> None:
    assert failures.first_line(error) == line


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (JavaError(f"{CALLED}\n: java.io.IOException: disk full"), "java.io.IOException: disk full"),
        (AnalysisException("no such table\nat line 1"), "no such table"),
        (Py4JNetworkError("Answer from Java side is empty"), "Spark's Java process has ended"),
    ],
)
def test_errors_of_spark_become_a_line(error: Any, message: str) -> None:
    with pytest.raises(PipelineError) as raised, failures.explained():
        raise error
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError), failures.explained():
        raise ZeroDivisionError
