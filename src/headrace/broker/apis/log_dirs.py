"""DescribeLogDirs and AlterReplicaLogDirs (KIP-113)."""

import logging
from pathlib import Path
from typing import Any, Final

from headrace.broker.disks.log_mover import LogMover
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.replica import Replica
from headrace.replication.replica_manager import ReplicaManager
from headrace.server.context import Handler, Reply, RequestContext
from headrace.slices import Steps, chunks, in_slices
from headrace.storage.dirs.log_move import LogMove
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.encoder import Fields
from headrace.wire.items import made_of

log = logging.getLogger(__name__)


_PER_SLICE: Final = 256
_LOGGED: Final = 10
"""Maximum number of a request's refused moves to log with their errors; the others are only counted."""


class LogDirsApi:
    """Handles DescribeLogDirs and AlterReplicaLogDirs."""

    def __init__(self, replicas: ReplicaManager, mover: LogMover) -> None:
        self._replicas = replicas
        self._mover = mover

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_LOG_DIRS: self.describe_log_dirs,
            ApiKey.ALTER_REPLICA_LOG_DIRS: self.alter_replica_log_dirs,
        }

    def describe_log_dirs(self, _: RequestContext, request: Any) -> Reply | Steps[Reply]:
        """Return the log size in bytes of the named partitions, or of all; for an offline directory, only its error."""
        return in_slices(self._described(request))

    def _described(self, request: Any) -> Steps[Reply]:
        wanted: set[TopicPartition] | None = None
        if request.topics is not None:
            wanted = set()
            for topic in request.topics:
                for some in chunks(topic.partitions, _PER_SLICE):
                    wanted.update([TopicPartition(topic.topic, index) for index in some])
                    yield
        # Sizes are determined while the reply is encoded, to save memory if many requests arrive at once.
        by_directory: dict[Path, dict[str, list[Replica | LogMove]]] = {}

        def add(directory: Path, topic_partition: TopicPartition, source: Replica | LogMove) -> None:
            if wanted is None or topic_partition in wanted:
                by_directory.setdefault(directory, {}).setdefault(topic_partition.topic, []).append(source)

        for partition in self._replicas.hosted():
            add(partition.log.directory.parent, partition.topic_partition, partition)
            yield
        for topic_partition, move in tuple(self._mover.moves.items()):
            add(move.target, topic_partition, move)
        results: list[Fields] = [
            {
                "error_code": ErrorCode.none,
                "log_dir": str(directory),
                "topics": made_of(
                    list(by_directory.get(directory, {}).items()),
                    lambda found: {"name": found[0], "partitions": made_of(found[1], _described_one)},
                ),
                "total_bytes": total,
                "usable_bytes": usable,
            }
            for directory in self._replicas.log_dirs.directories
            for total, usable in (self._replicas.log_dirs.owned.space(directory),)
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
        """Start to move replicas; DescribeLogDirs shows their progress."""
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
                            log.warning("%s-%d cannot be moved to %s: %s", topic.name, index, path, failure)
                    found.append({"partition_index": index, "error_code": error})
                    yield
        if refused > _LOGGED:
            log.warning("%d more partitions of the same request cannot be moved", refused - _LOGGED)
        return {"results": [{"topic_name": name, "partitions": found} for name, found in outcomes.items()]}


def _described_one(source: Replica | LogMove) -> Fields:
    if isinstance(source, Replica):
        size, lag = source.log.segments.size, max(0, source.high_watermark - source.log_end_offset)
        index = source.topic_partition.partition
    else:
        size, lag = source.size, source.log.log_end_offset - source.end_offset
        index = source.log.topic_partition.partition
    return {
        "partition_index": index,
        "partition_size": size,
        "offset_lag": lag,
        "is_future_key": not isinstance(source, Replica),
    }
