"""The Spark session of a deployment: its settings, and which of them the user, the profile or spark-submit decides."""

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from headrace.pipeline import jars
from headrace.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL: Final = "local[*]"
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit for the Python process that it starts."""
_OVERRIDES: Final = "HEADRACE_SPARK_CONF"

SEMANTIC: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # State may outgrow the heap, and a batch should write only what it changed.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""Settings that decide what the results are. They hold on any master."""

_LAPTOP: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    # On few cores, the second compiler and parallel collectors take more time than they save.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Duser.timezone=UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    # Adaptive plans do not help a few partitions, and each adaptation is another job.
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
}
_SERVER: Final[Mapping[str, str]] = {
    "spark.driver.extraJavaOptions": "-XX:+UseG1GC -Duser.timezone=UTC",
    "spark.executor.extraJavaOptions": "-XX:+UseG1GC -Duser.timezone=UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.databricks.delta.snapshotPartitions": "4",
}


class SparkDeployment(Protocol):
    """The parts of a deployment that a session needs."""

    @property
    def lake(self) -> str: ...

    @property
    def spark(self) -> Mapping[str, str]:
        """Settings of Spark, with or without the prefix `spark.`; `master` may be among them."""


def profile(master: str) -> dict[str, str]:
    """Return the settings for speed and size that a master implies: one process, or a cluster."""
    if not master.startswith("local"):
        return dict(_SERVER)
    return {**_LAPTOP, "spark.sql.shuffle.partitions": str(_cores(master))}


def settings(
    deployment: SparkDeployment, *, master: str | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the settings of a deployment's session.

    The master is `master`, else the deployment's, else local[*]. Under spark-submit, the master, memory, hosts and jars
    are those of its command line: only settings that change results, and the deployment's SQL settings, are added.
    `HEADRACE_SPARK_CONF` (`key=value`, separated by semicolons) overrides everything.

    Raises PipelineError for `master` under spark-submit, and if the directory given for connector jars has none.
    """
    chosen = {name if name.startswith("spark.") else f"spark.{name}": value for name, value in deployment.spark.items()}
    # Spark creates the warehouse's directory even if nothing is ever stored in it.
    semantic = {**SEMANTIC, "spark.sql.warehouse.dir": f"{deployment.lake.rstrip('/')}/_warehouse"}
    if _SUBMITTED in environ:
        if master is not None:
            raise PipelineError(
                f"spark-submit has already chosen the master: pass --master {master} to spark-submit, not to headrace"
            )
        sql = {name: value for name, value in chosen.items() if name.startswith(("spark.sql.", "spark.databricks."))}
        found = {**semantic, **sql}
    else:
        where = master or chosen.get("spark.master", LOCAL)
        found = {**profile(where), **semantic, **_with_jars(chosen, environ), "spark.master": where}
    for setting in filter(None, environ.get(_OVERRIDES, "").split(";")):
        name, _, value = setting.partition("=")
        found[name.strip()] = value.strip()
    return found


def build(deployment: SparkDeployment, *, master: str | None = None, name: str = "headrace") -> "SparkSession":
    """Return the session of a deployment. Raises PipelineError as `settings` does."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    for key, value in settings(deployment, master=master).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _with_jars(chosen: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Add the connector's jars to those of the user, such as the one that knows s3a://."""
    own = jars.spark_settings(environ)
    return {**chosen, **{name: ",".join(filter(None, (jar, chosen.get(name)))) for name, jar in own.items()}}


def _cores(master: str) -> int:
    number = re.match(r"local\[(\d+)", master)
    if number:
        return int(number[1])
    return (os.cpu_count() or 1) if "*" in master else 1
