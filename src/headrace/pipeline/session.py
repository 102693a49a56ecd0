"""The Spark session of a pipeline: small enough for a laptop, silent, in UTC."""

import os
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.pipeline import jars


def build_session(name: str, scratch: Path, *, cores: int = 2) -> SparkSession:
    """A session on this machine that keeps its own files under `scratch`.

    `HEADRACE_SPARK_CONF` may hold further settings, `key=value` separated by semicolons, that win over those here.
    Raises `PipelineError` when the connector jars were promised and are not there.
    """
    settings = {
        "spark.master": f"local[{cores}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        # Short programs on few cores: the second compiler and the parallel collectors cost more than they bring.
        "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Duser.timezone=UTC "
        f"-Dderby.system.home={scratch}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.local.dir": str(scratch / "spark"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        # Two partitions need no plan that adapts while it runs, and each adaptation is a job of its own.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        # Batches are cached before they are merged, so a copy of them would be a second cache.
        "spark.databricks.delta.merge.materializeSource": "none",
        # State that a watermark frees is freed with the next data; a batch of its own for that would publish nothing.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # A task that runs twice writes to Kafka twice. A failed batch is repeated as a whole instead: see jobs/sink.py.
        "spark.task.maxFailures": "1",
        "spark.speculation": "false",
        **jars.spark_settings(),
    }
    for setting in filter(None, os.environ.get("HEADRACE_SPARK_CONF", "").split(";")):
        key, _, value = setting.partition("=")
        settings[key.strip()] = value.strip()
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
