"""The rows of the result, with the bounds that Headrace must meet.

Every turn has a ratio, Headrace / Kafka, so that a slow moment of the machine affects both. Their median is judged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

EQUAL: Final = 0.95
"""Minimum throughput ratio if the client is the bottleneck: runs of the same broker vary by as much."""


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of both brokers. `at_least` and `at_most` limit the ratio; `absolute` is the maximum for Headrace."""

    key: str
    title: str
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    absolute: float | None = None


class Outcome(NamedTuple):
    """A row with its medians; `ratio` and `is_met` are None if a broker was not measured."""

    row: Row
    headrace: float
    kafka: float | None
    ratio: float | None
    is_met: bool | None


ROWS: Final = (
    Row("produce-first.rate", "produce, batch.size 8196, just started", "records/s", at_least=1.0),
    Row("produce-first.cpu", "  broker CPU per million records", "s", at_most=0.5),
    Row("produce-small.rate", "produce, batch.size 8196", "records/s", at_least=1.0),
    Row("produce-small.cpu-from-start", "  broker CPU per million records, from its start", "s", at_most=0.5),
    Row("produce-small.cpu", "  broker CPU per million records, once warm", "s", at_most=1.0),
    Row("produce-large.rate", "produce, batch.size 65536, linger.ms 5", "records/s", at_least=1.0),
    Row("produce-large.cpu-from-start", "  broker CPU per million records, from its start", "s", at_most=0.8),
    Row("produce-large.cpu", "  broker CPU per million records, once warm", "s", at_most=1.0),
    Row("produce-lines.rate", "produce, lines of a file (the client is the limit)", "records/s", at_least=EQUAL),
    Row("produce-lines.cpu", "  broker CPU per million records", "s"),
    Row("produce-keyed.rate", "produce, keyed records with two headers", "records/s", at_least=1.0),
    Row("produce-keyed.cpu", "  broker CPU per million records", "s", at_most=1.0),
    Row("produce-keyed-zstd.rate", "produce, the same, zstd", "records/s"),
    Row("produce-keyed-zstd.cpu", "  broker CPU per million records", "s", at_most=1.0),
    Row("produce-keyed-lz4.rate", "produce, the same, lz4", "records/s", at_least=1.0),
    Row("produce-keyed-lz4.cpu", "  broker CPU per million records", "s", at_most=1.0),
    Row("produce-json.rate", "produce, JSON of 1 KB", "records/s", at_least=1.0),
    Row("produce-json.cpu", "  broker CPU per million records", "s", at_most=1.0),
    Row("consume.rate", "consume (the client is the limit)", "records/s", at_least=EQUAL),
    Row("consume.cpu", "  broker CPU per million records", "s"),
    Row("rdkafka-produce.rate", "produce, librdkafka (the client is the limit)", "records/s", at_least=EQUAL),
    Row("rdkafka-produce.cpu", "  broker CPU per million records", "s"),
    Row("rdkafka-consume.rate", "consume, librdkafka (the client is the limit)", "records/s", at_least=EQUAL),
    Row("rdkafka-consume.cpu", "  broker CPU per million records", "s"),
    Row("sync.p50", "one record at a time, p50", "ms", at_most=1.0),
    Row("sync.p99", "  p99", "ms", at_most=0.7),
    Row("sync.p999", "  p99.9", "ms", at_most=1.0),
    Row("in-flight.rate", "one-record requests, 64 in flight", "requests/s", at_least=3.0),
    Row("end-to-end.mean", "record sent to record consumed, mean", "ms", at_most=1.0),
    Row("start.seconds", "start to first answer", "s", at_most=1.0, absolute=0.3),
    Row("restart.seconds", "restart after kill -9 under load", "s", at_most=1.0),
    Row("start.memory", "resident memory at start", "MB", at_most=0.125, absolute=45.0),
    Row("load.memory", "  highest under load", "MB", at_most=0.125),
)


def outcomes(headrace: Mapping[str, Sequence[float]], kafka: Mapping[str, Sequence[float]]) -> list[Outcome]:
    """Judge the measured rows. Samples are by row key, one per turn, in the same order for both brokers."""
    return [_judge(row, headrace[row.key], kafka.get(row.key, ())) for row in ROWS if headrace.get(row.key)]


def _judge(row: Row, headrace: Sequence[float], kafka: Sequence[float]) -> Outcome:
    own = median(headrace)
    ratio = median(ours / theirs for ours, theirs in zip(headrace, kafka, strict=False)) if kafka else None
    verdicts = []
    if row.absolute is not None:
        verdicts.append(own <= row.absolute)
    if ratio is not None and row.at_least is not None:
        verdicts.append(ratio >= row.at_least)
    if ratio is not None and row.at_most is not None:
        verdicts.append(ratio <= row.at_most)
    return Outcome(row, own, median(kafka) if kafka else None, ratio, all(verdicts) if verdicts else None)
