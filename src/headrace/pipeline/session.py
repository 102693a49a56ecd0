"""The Spark session of a pipeline: small, quiet, in UTC."""

import os
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.pipeline import jars


def build_session(name: str, scratch: Path, *, cores: int = 2) -> SparkSession:
    """Return a local session with its files under `scratch`.

    `HEADRACE_SPARK_CONF` overrides settings, as `key=value` separated by semicolons. Raises `PipelineError` if the
    directory given for connector jars has none.
    """
    settings = {
        "spark.master": f"local[{cores}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        # For short programs on few cores, the second compiler and parallel collectors do not pay off.
        "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Duser.timezone=UTC "
        f"-Dderby.system.home={scratch}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.local.dir": str(scratch / "spark"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        # Adaptive plans do not help two partitions, and each adaptation is another job.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        # Batches are already cached before they are merged.
        "spark.databricks.delta.merge.materializeSource": "none",
        # A batch without data would only free state and publish nothing; the next data frees it too.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # A repeated task would write to Kafka twice. Failed batches are repeated as a whole: see jobs/sink.py.
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
