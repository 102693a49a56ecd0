"""Errors of Spark and of its Java process, as one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from headrace.pipeline.engine.java import has_ended
from headrace.pipeline.errors import PipelineError


def first_line(error: Exception) -> str:
    """Return the first line of the message that says what happened, or the error's type if it has no message."""
    try:
        lines = str(error).strip().splitlines()
    except (Py4JError, OSError):
        lines = []  # the Java process, which has the message, has ended
    if isinstance(error, Py4JJavaError) and len(lines) > 1:
        # The first line only names the object that was called.
        return lines[1].removeprefix(": ")
    return next(iter(lines), "") or type(error).__name__


@contextmanager
def explained() -> Iterator[None]:
    """Convert Spark's errors to one-line PipelineErrors."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        raise PipelineError(first_line(error)) from error
    except (Py4JError, OSError) as error:
        if isinstance(error, OSError) and not has_ended(error):
            raise
        raise PipelineError(
            "Spark's Java process has ended: it was killed or ran out of memory. "
            "To give it more memory, raise driver.memory in [spark]"
        ) from error
