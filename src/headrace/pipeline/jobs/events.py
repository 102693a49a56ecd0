"""Requests to a web server, parsed once for all jobs; records that are not requests go to the quarantine."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.jobs.archive import RECORD_COLUMNS
from headrace.pipeline.parsers import FIELDS, parser_of
from headrace.pipeline.spec.jobs import Append, Topic, job
from headrace.pipeline.spec.sharing import shared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BYTES: Final = ("key", "value", "headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    parser: str = "access-log"
    """`access-log`, `json`, the name of a registered parser, or `module:function`."""


@job(
    name="events",
    source=Topic(),
    outputs=(Append(table="events"), Append(table="quarantine")),
    params=Events,
)
def events(records: "DataFrame", params: Events) -> "dict[str, DataFrame]":
    """Parse records, or rows of `raw`, into requests.

    Topic id, partition and offset identify an event, because equal lines are different requests. `ingested_at` is the
    timestamp of the record, so that events rebuilt from `raw` are the same. The quarantine has the columns of the
    records, unchanged, and the reason. Raises PipelineError if the parser does not exist or lacks a column.
    """
    from pyspark.sql import functions as sf

    parsed = parser_of(params.parser)(records)
    missing = [name for name in (*FIELDS, "reason") if name not in parsed.columns]
    if missing:
        raise PipelineError(f"parser '{params.parser}' does not return {', '.join(missing)}: add the missing columns")
    more = [name for name in parsed.columns if name not in {*records.columns, *FIELDS, "reason"}]
    # Both tables come from the same cached rows. To save memory, only rejected rows keep their bytes.
    rejected = {name: sf.when(sf.col("reason").isNotNull(), sf.col(name)) for name in _BYTES}
    parsed = shared(parsed.withColumns(rejected))
    good = parsed.where(sf.col("reason").isNull()).select(
        "topic_id",
        sf.col("partition").alias("source_partition"),
        sf.col("offset").alias("source_offset"),
        sf.col("timestamp").alias("ingested_at"),
        *FIELDS,
        *more,
    )
    bad = parsed.where(sf.col("reason").isNotNull()).select(*RECORD_COLUMNS, "reason")
    return {"events": good, "quarantine": bad}
