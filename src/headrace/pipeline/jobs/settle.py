"""Count requests that came later than the watermark.

A query drops the state of a window once the newest request is `LATE_BY` past it, and then ignores late requests. The
archive has them: the same transform over the archive gives the correct rows, and those that differ from the table are
written like any batch. A query never writes to a dropped window again, so nothing is overwritten.
"""

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from headrace.pipeline.jobs.access_log import CRAWLERS, EVENTS, LATE_BY, PAGE_VIEWS, REQUEST_RATE
from headrace.pipeline.jobs.job import Output
from headrace.pipeline.jobs.place import Place
from headrace.pipeline.jobs.sink import Cluster, Commit, Sink, find_commit
from headrace.pipeline.transforms import crawlers, traffic

_Windowed: TypeAlias = Callable[[DataFrame, str], DataFrame]
_WINDOWED: Final[tuple[tuple[Output, _Windowed], ...]] = (
    (PAGE_VIEWS, traffic.page_views_per_minute),
    (REQUEST_RATE, traffic.request_rate_per_minute),
    (CRAWLERS, crawlers.crawlers_per_hour),
)

log = logging.getLogger(__name__)


def settle(spark: SparkSession, cluster: Cluster, place: Place) -> int:
    """Update the windowed tables and their topics from the archive, and return the number of corrected rows."""
    archive = place.table(EVENTS.table)
    if not DeltaTable.isDeltaTable(spark, archive):
        return 0
    version: int = DeltaTable.forPath(spark, archive).history(1).collect()[0].version
    events = spark.read.format("delta").load(archive)
    corrected = 0
    for output, transform in _WINDOWED:
        writer, path = f"settle/{output.table}", place.table(output.table)
        rows = _missing(transform(events, LATE_BY), path, find_commit(spark, path, writer, version))
        # Not a cache: Spark would compute the difference again after the table has been updated.
        corrected += Sink(output, writer, path, cluster).write(rows.localCheckpoint(), version)
    log.info("%d rows corrected for late requests", corrected)
    return corrected


def _missing(expected: DataFrame, path: str, repeated: Commit | None) -> DataFrame:
    """Return the rows missing in the table; for a repeated run, those that were missing before its first attempt."""
    spark = expected.sparkSession
    if not DeltaTable.isDeltaTable(spark, path) or (repeated and repeated.version == 0):
        return expected
    stored = spark.read.format("delta")
    if repeated:
        stored = stored.option("versionAsOf", repeated.version - 1)
    return expected.exceptAll(stored.load(path).select(*expected.columns))
