"""Requests that came later than the watermark, counted after all.

A query forgets a window once the newest request is `LATE_BY` past it, and Spark drops what arrives for it then. The
archive has it: the same transform over the archive gives the rows that the tables should have, and those that differ
are written like any other batch. A forgotten window is never touched by its query again, so nothing is overwritten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from headrace.pipeline.jobs.access_log import CRAWLERS, EVENTS, LATE_BY, PAGE_VIEWS, REQUEST_RATE
from headrace.pipeline.jobs.job import Output
from headrace.pipeline.jobs.place import Place
from headrace.pipeline.jobs.sink import Cluster, Sink
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
        rows = transform(events, LATE_BY)
        path = place.table(output.table)
        if DeltaTable.isDeltaTable(spark, path):
            rows = rows.exceptAll(spark.read.format("delta").load(path).select(*rows.columns))
        rows = rows.persist()
        try:
            corrected += Sink(output, f"settle/{output.table}", path, cluster).write(rows, version)
        finally:
            rows.unpersist()
    log.info("%d rows of late requests settled", corrected)
    return corrected
