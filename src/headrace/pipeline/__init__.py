"""Spark Structured Streaming over Headrace: jobs from DataFrame to DataFrame, between topics and Delta tables.

The jobs are ordinary Kafka clients: they use Spark's Kafka connector and confluent-kafka. Modules that need pyspark
are imported late, because only the extra `headrace[pipeline]` installs it.
"""

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.jobs import (
    Additive,
    Append,
    Changelog,
    Expect,
    Publish,
    Snapshot,
    Stateful,
    Table,
    Topic,
    job,
)
from headrace.pipeline.spec.params import Interval
from headrace.pipeline.spec.sharing import shared

__all__ = [
    "Additive",
    "Append",
    "Changelog",
    "Expect",
    "Interval",
    "PipelineError",
    "Publish",
    "Snapshot",
    "Stateful",
    "Table",
    "Topic",
    "job",
    "shared",
]
