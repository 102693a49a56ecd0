"""The archive: every record of the topics, unchanged, in the table `raw`."""

from typing import TYPE_CHECKING, Final

from headrace.pipeline.spec.jobs import Append, NoParams, Topic, job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORD_COLUMNS: Final = (
    "topic",
    "topic_id",
    "partition",
    "offset",
    "timestamp",
    "timestamp_type",
    "key",
    "value",
    "headers",
)


@job(
    name="raw",
    source=Topic(),
    outputs=(Append(table="raw", partition_by=("ingest_date",)),),
    trigger="10 seconds",
)
def raw(records: "DataFrame", params: NoParams) -> "DataFrame":  # noqa: ARG001 (all jobs have parameters)
    """Add the date of ingestion (UTC).

    It is the date of the batch, not of the record: then a batch writes to only one partition of the table, even if its
    records are old.
    """
    from pyspark.sql import functions as sf

    return records.select(*RECORD_COLUMNS, sf.current_date().alias("ingest_date"))
