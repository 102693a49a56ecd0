"""Spark settings for a laptop and for a server, as a table. Does not import Spark."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from headrace.pipeline.errors import PipelineError

Profile: TypeAlias = Literal["laptop", "server"]

DEFAULT_MASTER: Final = "local[*]"
# Spark puts most of a stage's code into one method. By default, Java compiles no method of more than 8,000 bytes.
_JAVA: Final = "-XX:-DontCompileHugeMethods -Duser.timezone=UTC"
# Ten times the defaults. Otherwise, Java's optimizing compiler takes a third of two cores, mostly for code that plans
# batches; without it, the code that processes rows takes twice as long.
_HOTTEST: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
FOR_FEW_ROWS: Final = "-XX:TieredStopAtLevel=1"
"""Java option for a driver that processes few rows: it starts faster without the optimizing compiler."""
_HIDDEN: Final = "(?i)secret|password|passphrase|token|access[.]?key|jaas|keystore[.]key"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of Spark. None leaves Spark's default."""

    name: str
    laptop: str | None
    server: str | None
    why: str


def _fixed(name: str, value: str, why: str) -> Setting:
    return Setting(name, value, value, why)


FIXED: Final = (
    _fixed("spark.sql.session.timeZone", "UTC", "hours and days are those of UTC"),
    _fixed("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension", "Delta tables"),
    _fixed("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog", "Delta tables"),
    _fixed(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        "state outside the Java heap",
    ),
    _fixed(
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
        "true",
        "a batch saves only its changes",
    ),
    _fixed("spark.sql.streaming.multipleWatermarkPolicy", "min", "the slowest of several watermarks counts"),
    _fixed("spark.speculation", "false", "a task writes once"),
    _fixed("spark.redaction.regex", _HIDDEN, "secrets stay out of logs and web pages"),
    _fixed("spark.sql.redaction.options.regex", f"{_HIDDEN}|url", "secrets stay out of query plans"),
)
"""Settings on which results or secrets depend, for every master and with spark-submit."""

TUNING: Final = (
    Setting("spark.driver.host", "127.0.0.1", None, "nothing listens on the network"),
    Setting("spark.driver.bindAddress", "127.0.0.1", None, "nothing listens on the network"),
    Setting("spark.driver.memory", "1g", "2g", "heap of the driver; [spark] driver.memory changes it"),
    Setting(
        "spark.driver.extraJavaOptions",
        f"-XX:+UseSerialGC {_HOTTEST} {_JAVA}",
        f"-XX:+UseG1GC {_JAVA}",
        "compilation and garbage collection for few or many cores",
    ),
    Setting("spark.executor.extraJavaOptions", None, f"-XX:+UseG1GC {_JAVA}", "the same on the workers"),
    Setting("spark.ui.enabled", "false", "true", "`headrace pipeline status` shows the queries"),
    Setting("spark.ui.showConsoleProgress", "false", "false", "progress bars would garble the commands' output"),
    Setting("spark.log.level", "WARN", "WARN", "Spark's own messages"),
    Setting("spark.sql.shuffle.partitions", "2", "32", "tasks after a shuffle; a checkpoint keeps the first value"),
    Setting("spark.sql.adaptive.enabled", "false", "true", "adapting a plan takes time, and pays off with many tasks"),
    Setting("spark.python.sql.dataFrameDebugging.enabled", "false", "false", "finding expressions' lines takes time"),
    Setting("spark.sql.ui.explainMode", "simple", None, "describing every plan in full takes time"),
    Setting("spark.sql.debug.maxToStringFields", "1", None, "descriptions of plans need not list columns"),
    Setting("spark.databricks.delta.snapshotPartitions", "2", None, "tasks that read the log of a table"),
    Setting(
        "spark.databricks.delta.properties.defaults.checkpointInterval",
        "60",
        "60",
        "commits between two checkpoints of a new table; by default, batches would wait for one every ten commits",
    ),
    # Otherwise, each partition of each stateful job may use 128 MB outside the heap before it writes to disk.
    Setting("spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage", "true", None, "one limit for all state"),
    Setting("spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB", "64", None, "memory for state outside the heap"),
    Setting(
        "spark.sql.streaming.stateStore.rocksdb.compression", "none", None, "state is read more often than written"
    ),
    Setting("spark.sql.codegen.cache.maxEntries", "2000", "2000", "ten queries need more than the default, 100"),
    Setting("spark.sql.inMemoryColumnarStorage.compressed", "false", None, "a batch is cached only for a moment"),
    Setting("spark.sql.maxConcurrentOutputFileWriters", "2", "8", "few partitions need no sorting"),
    Setting(
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold",
        "10000",
        "10000",
        "sketches of many pages are faster to hash than to sort",
    ),
)
"""Settings of the profiles, which `[spark]` in the deployment overrides."""

TABLE: Final = FIXED + TUNING


def profile_of(master: str) -> Profile:
    """Return the profile for a Spark master. Raises PipelineError if it is invalid."""
    if master == "local" or (master.startswith("local[") and master.endswith("]")):
        return "laptop"
    if master == "yarn" or master.startswith(("spark://", "k8s://", "local-cluster[")):
        return "server"
    raise PipelineError(
        f"'{master}' is not a Spark master: use local[*], local[4], spark://HOST:PORT, k8s://https://HOST:PORT or yarn"
    )


def settings(profile: Profile) -> dict[str, str]:
    values = {item.name: item.laptop if profile == "laptop" else item.server for item in TABLE}
    return {name: value for name, value in values.items() if value is not None}


def fixed() -> dict[str, str]:
    """Return the settings that a session needs even if spark-submit has set all others."""
    return {item.name: item.laptop for item in FIXED if item.laptop is not None}
