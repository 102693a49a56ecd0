"""DescribeLogDirs and AlterReplicaLogDirs (KIP-113): what lies where, how much room is left, and moving it."""

import logging
from pathlib import Path
from typing import Any, Final

from headrace.broker.disks.log_mover import LogMover
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.replica_manager import ReplicaManager
from headrace.server.context import Handler, Reply, RequestContext
from headrace.slices import Steps, chunks, in_slices
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.encoder import Fields

log = logging.getLogger(__name__)


_OFTEN: Final = 256
_LOGGED: Final = 10
"""Refused moves of one request that have a line each in the log."""


class LogDirsApi:
    """Handlers for log directories."""

    def __init__(self, replicas: ReplicaManager, mover: LogMover) -> None:
        self._replicas = replicas
        self._mover = mover

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_LOG_DIRS: self.describe_log_dirs,
            ApiKey.ALTER_REPLICA_LOG_DIRS: self.alter_replica_log_dirs,
        }

    def describe_log_dirs(self, _: RequestContext, request: Any) -> Reply | Steps[Reply]:
        """Sizes in bytes; all partitions when none are named. A directory that is offline has the error and no more."""
        return in_slices(self._described(request))

    def _described(self, request: Any) -> Steps[Reply]:
        wanted: set[TopicPartition] | None = None
        if request.topics is not None:
            wanted = set()
            for topic in request.topics:
                for some in chunks(topic.partitions, _OFTEN):
                    wanted.update([TopicPartition(topic.topic, index) for index in some])
                    yield
        by_directory: dict[Path, dict[str, list[Fields]]] = {}

        def add(directory: Path, topic_partition: TopicPartition, size: int, lag: int, *, is_future: bool) -> None:
            if wanted is None or topic_partition in wanted:
                by_directory.setdefault(directory, {}).setdefault(topic_partition.topic, []).append(
                    {
                        "partition_index": topic_partition.partition,
                        "partition_size": size,
                        "offset_lag": lag,
                        "is_future_key": is_future,
                    }
                )

        for partition in self._replicas.partitions():
            lag = max(0, partition.high_watermark - partition.log_end_offset)
            add(
                partition.log.directory.parent,
                partition.topic_partition,
                partition.log.segments.size,
                lag,
                is_future=False,
            )
            yield
        for topic_partition, move in tuple(self._mover.moves.items()):
            lag = move.log.log_end_offset - move.end_offset
            add(move.target, topic_partition, move.size, lag, is_future=True)
        results: list[Fields] = [
            {
                "error_code": ErrorCode.none,
                "log_dir": directory,
                "topics": [
                    {"name": name, "partitions": found} for name, found in by_directory.get(Path(directory), {}).items()
                ],
                "total_bytes": total,
                "usable_bytes": usable,
            }
            for directory, total, usable in self._replicas.space()
        ]
        results += [
            {
                "error_code": ErrorCode.kafka_storage_error,
                "log_dir": str(directory),
                "topics": [],
                "total_bytes": -1,
                "usable_bytes": -1,
            }
            for directory in self._replicas.log_dirs.owned.offline
        ]
        return {"results": results}

    def alter_replica_log_dirs(self, _: RequestContext, request: Any) -> Reply | Steps[Reply]:
        """Begin to move replicas; DescribeLogDirs tells how far they are."""
        return in_slices(self._altered(request))

    def _altered(self, request: Any) -> Steps[Reply]:
        outcomes: dict[str, list[Fields]] = {}
        refused = 0
        for wanted in request.dirs:
            path = Path(wanted.path)
            for topic in wanted.topics:
                found = outcomes.setdefault(topic.name, [])
                for index in topic.partitions:
                    error = ErrorCode.none
                    try:
                        self._mover.move(topic.name, index, path)
                    except KafkaError as failure:
                        error = failure.code
                        refused += 1
                        if refused <= _LOGGED:
                            log.warning("%s-%d is not moved to %s: %s", topic.name, index, path, failure)
                    found.append({"partition_index": index, "error_code": error})
                    yield
        if refused > _LOGGED:
            log.warning("%d more partitions of the same request are not moved", refused - _LOGGED)
        return {"results": [{"topic_name": name, "partitions": found} for name, found in outcomes.items()]}
