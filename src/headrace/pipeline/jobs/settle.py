"""Requests that came later than the watermark, counted after all.

A query forgets a window once the newest request is `LATE_BY` past it, and Spark drops what arrives for it then. The
archive has it: the same transform over the archive gives the rows that the tables should have, and those that differ
are written like any other batch. A forgotten window is never touched by its query again, so nothing is overwritten.
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
    """Make the windowed tables and their topics agree with the archive; returns how many rows were put right."""
    archive = place.table(EVENTS.table)
    if not DeltaTable.isDeltaTable(spark, archive):
        return 0
    version: int = DeltaTable.forPath(spark, archive).history(1).collect()[0].version
    events = spark.read.format("delta").load(archive)
    corrected = 0
    for output, transform in _WINDOWED:
        writer, path = f"settle/{output.table}", place.table(output.table)
        rows = _missing(transform(events, LATE_BY), path, find_commit(spark, path, writer, version))
        # Not a cache: Spark would compute that anew once the table, which these rows are told from, has them.
        corrected += Sink(output, writer, path, cluster).write(rows.localCheckpoint(), version)
    log.info("%d rows of late requests settled", corrected)
    return corrected


def _missing(expected: DataFrame, path: str, repeated: Commit | None) -> DataFrame:
    """The rows that the table does not have; if this was cut short before, those that it did not have then."""
    spark = expected.sparkSession
    if not DeltaTable.isDeltaTable(spark, path) or (repeated and repeated.version == 0):
        return expected
    stored = spark.read.format("delta")
    if repeated:
        stored = stored.option("versionAsOf", repeated.version - 1)
    return expected.exceptAll(stored.load(path).select(*expected.columns))
