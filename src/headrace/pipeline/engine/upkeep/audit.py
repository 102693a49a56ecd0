"""Prove that every offset of a log is in a table, or explain why it is not."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from headrace.pipeline.engine.upkeep.presence import Present
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.client_settings import Cluster

_TIMEOUT_S: Final = 30.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The range of a partition's offsets: from `start` up to, but not including, the last stable offset `end`."""

    topic_id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Offsets from `first` to `last` that a table does not contain."""

    topic: str
    topic_id: str
    partition: int
    first: int
    last: int
    verdict: Literal["explained", "missing"]
    reason: str


class Log(Protocol):
    """Read access to the logs of a cluster."""

    def bounds(self, topic: str) -> Mapping[int, Bounds]:
        """Return the bounds of a topic's partitions; empty if the topic does not exist."""

    def first_record(self, topic: str, partition: int, offsets: range) -> int | None:
        """Return the offset of the first record among `offsets` that a `read_committed` consumer gets, or None."""


def audit(tables: Sequence[Present], log: Log, read_to: Mapping[tuple[str, int], int]) -> list[Gap]:
    """Return the gaps in the offsets of `tables`, including partitions that were never read.

    `read_to` contains the next offset that the job will read, by topic and partition. The audit of a partition ends
    there or, if it is unknown, at the last offset in the tables. A topic that is in neither argument is not audited.
    """
    topics = sorted({present.topic for present in tables} | {topic for topic, _ in read_to})
    found: list[Gap] = []
    for topic in topics:
        bounds = log.bounds(topic)
        stored = {(p.topic_id, p.partition): p for p in tables if p.topic == topic}
        for (topic_id, partition), present in stored.items():
            known = bounds.get(partition)
            if known is None or known.topic_id != topic_id:
                found.extend(_of_old_topic(present))
        for partition, known in bounds.items():
            there = stored.get((known.topic_id, partition))
            read = read_to.get((topic, partition), there.last + 1 if there else 0)
            end = min(read, known.end)
            for gap in _gaps(there, end):
                found.extend(_judged(gap, topic, partition, known, there, log))
    return found


def _gaps(present: Present | None, end: int) -> Iterator[range]:
    if present is None:
        yield from _unless_empty(range(end))
        return
    # Offsets from `end` on belong to a batch that is being written.
    for gap in (range(present.first), *present.gaps, range(present.last + 1, end)):
        yield from _unless_empty(range(gap.start, min(gap.stop, end)))


def _unless_empty(offsets: range) -> Iterator[range]:
    if offsets:
        yield offsets


def _judged(gap: range, topic: str, partition: int, bounds: Bounds, present: Present | None, log: Log) -> Iterator[Gap]:
    """Yield a verdict on the offsets that were deleted from the log, and one on those that are still in the log."""

    def verdict(offsets: range, kind: Literal["explained", "missing"], reason: str) -> Gap:
        return Gap(
            topic=topic,
            topic_id=bounds.topic_id,
            partition=partition,
            first=offsets.start,
            last=offsets.stop - 1,
            verdict=kind,
            reason=reason,
        )

    deleted, kept = range(gap.start, min(gap.stop, bounds.start)), range(max(gap.start, bounds.start), gap.stop)
    if deleted and (present is None or gap.stop <= present.first):
        yield verdict(deleted, "explained", "deleted by retention before the job read the partition")
    elif deleted:
        yield verdict(
            deleted, "missing", "deleted by retention: it can no longer be shown that these offsets had no record"
        )
    if kept:
        record = log.first_record(topic, partition, kept)
        if record is None:
            yield verdict(kept, "explained", "no record: compacted, aborted, or a transaction's marker")
        else:
            yield verdict(kept, "missing", f"the log has a record at offset {record}")


def _of_old_topic(present: Present) -> Iterator[Gap]:
    for gap in present.gaps:
        yield Gap(
            topic=present.topic,
            topic_id=present.topic_id,
            partition=present.partition,
            first=gap.start,
            last=gap.stop - 1,
            verdict="missing",
            reason="the topic with this id no longer exists: it can no longer be shown that its offsets had no record",
        )


class ClusterLog:
    """The logs of a Kafka cluster. Close it after use. Calls raise KafkaException and, like `Topics`, PipelineError."""

    def __init__(self, cluster: Cluster) -> None:
        from confluent_kafka import Consumer

        from headrace.pipeline.engine.topics import Topics

        self._topics = Topics(cluster.confluent("admin"))
        self._consumer = Consumer(
            {
                **cluster.confluent("consumer"),
                "group.id": "headrace-audit",  # required, although nothing is committed
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
            },
            logger=log,
        )

    def close(self) -> None:
        self._consumer.close()

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of the existing topics by name; "" if the cluster has no topic ids."""
        return self._topics.ids(topics)

    def bounds(self, topic: str) -> dict[int, Bounds]:
        topic_id = self.ids([topic]).get(topic)
        if topic_id is None:
            return {}
        starts = self._topics.start_offsets([topic])[topic]
        ends = self._topics.end_offsets([topic], stable=True)[topic]
        return {p: Bounds(topic_id=topic_id, start=start, end=ends[p]) for p, start in starts.items() if p in ends}

    def first_record(self, topic: str, partition: int, offsets: range) -> int | None:
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        self._consumer.assign([TopicPartition(topic, partition, offsets.start)])
        message = self._consumer.poll(_TIMEOUT_S)
        if message is None:
            what = f"a read of {topic}-{partition} at offset {offsets.start}"
            raise PipelineError(f"no reply within {_TIMEOUT_S:g} s to {what}")
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                return None
            raise KafkaException(error)
        offset = message.offset()
        return offset if offset is not None and offset in offsets else None
