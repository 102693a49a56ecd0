"""The Spark session of the pipeline's commands."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_creates_nothing_in_the_working_directory(spark: "SparkSession") -> None:
    from headrace.pipeline.engine.java import java_class

    spark.sql("SELECT 1").collect()
    manager: Any = getattr(java_class(spark, "org.apache.spark.sql.artifact.ArtifactManager$"), "MODULE$")
    directory = Path(manager.artifactRootDirectory().toString())
    assert directory.is_dir()
    assert not directory.is_relative_to(Path.cwd())


def test_signals_of_a_terminal_do_not_end_java(spark: "SparkSession") -> None:
    """A closed terminal and Ctrl-C would otherwise end a batch in the middle."""
    java: Any = spark.sparkContext._gateway
    status = Path(f"/proc/{java.proc.pid}/status").read_text(encoding="ascii")
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    assert all(ignored >> number - 1 & 1 for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
