"""Start Spark for one command, hide the JVM's messages, and explain Spark's errors."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.cli.failures import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.pipeline.spec.deployment import Deployment

_STDERR = 2


@contextmanager
def spark_session(deployment: "Deployment", master: str | None) -> "Iterator[SparkSession]":
    """Start Spark, and stop it at the end. Raises PipelineError for Spark's errors, CommandError for the cluster's."""
    from headrace.pipeline import requirements

    requirements.check()
    from confluent_kafka import KafkaException

    from headrace.pipeline.engine import session
    from headrace.pipeline.engine.monitoring import failures

    with _quiet_children():
        spark = session.build(deployment, master=master, name="headrace pipeline")
    try:
        with failures.explained():
            yield spark
    except KafkaException as error:
        session.stop(spark)
        raise refused(error.args[0], deployment.cluster.bootstrap, "listing topics and offsets") from None
    except Exception:
        session.stop(spark)
        raise
    # Not after Ctrl-C: this call would wait for one that is still running in Java. Java ends with this process.
    session.stop(spark)


@contextmanager
def _quiet_children() -> Iterator[None]:
    """Redirect the standard error of child processes started here to a file, and print the file only after an error.

    At its start, the JVM prints a dozen lines about itself. It keeps writing to the file for as long as it runs.
    """
    ours = os.dup(_STDERR)
    with tempfile.TemporaryFile("w+", errors="replace") as messages:
        os.dup2(messages.fileno(), _STDERR)
        try:
            yield
        except BaseException:
            os.dup2(ours, _STDERR)
            messages.seek(0)
            shutil.copyfileobj(messages, sys.stderr)
            raise
        finally:
            os.dup2(ours, _STDERR)
            os.close(ours)
