"""Spark for one command: started without the messages of the JVM, and with its errors explained."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.cli.failures import CommandError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.pipeline.spec.deployment import Deployment

_STDERR = 2


@contextmanager
def spark_session(deployment: "Deployment", master: str | None) -> "Iterator[SparkSession]":
    """Start Spark, and stop it at the end. Raises CommandError for errors of Spark and of the cluster."""
    from headrace.pipeline import requirements

    requirements.check()
    from confluent_kafka import KafkaException
    from pyspark.errors import PySparkException

    from headrace.pipeline.engine import session

    with _quiet_children():
        spark = session.build(deployment, master=master, name="headrace pipeline")
    try:
        yield spark
    except PySparkException as error:
        raise CommandError(str(error).strip().splitlines()[0]) from None
    except KafkaException as error:
        raise CommandError(f"the cluster returned an error: {error.args[0].str()}") from None
    finally:
        spark.stop()


@contextmanager
def _quiet_children() -> Iterator[None]:
    """Redirect the standard error of processes that start now to a file, which is shown only after an error.

    The JVM prints a dozen lines about itself, and uses this standard error for as long as it runs.
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
