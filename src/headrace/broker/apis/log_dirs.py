"""DescribeLogDirs and AlterReplicaLogDirs: what lies in which log directory, and how much room is left."""

import logging
from typing import Any

from headrace.broker.context import Handler, Reply, RequestContext
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.replica_manager import ReplicaManager
from headrace.wire.apis import ApiKey
from headrace.wire.encoder import Fields

log = logging.getLogger(__name__)


class LogDirsApi:
    """Handlers for log directories."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_LOG_DIRS: self.describe_log_dirs,
            ApiKey.ALTER_REPLICA_LOG_DIRS: self.alter_replica_log_dirs,
        }

    def describe_log_dirs(self, _: RequestContext, request: Any) -> Reply:
        """Sizes in bytes; all partitions when none are named."""
        wanted = None
        if request.topics is not None:
            wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
        results = []
        for directory, total, usable in self._replicas.space():
            by_topic: dict[str, list[dict[str, Any]]] = {}
            for partition in self._replicas.partitions():
                name, index = partition.topic_partition
                if str(partition.log.directory.parent) != directory or (
                    wanted is not None and (name, index) not in wanted
                ):
                    continue
                by_topic.setdefault(name, []).append(
                    {
                        "partition_index": index,
                        "partition_size": partition.log.size,
                        "offset_lag": 0,
                        "is_future_key": False,
                    }
                )
            results.append(
                {
                    "error_code": ErrorCode.none,
                    "log_dir": directory,
                    "topics": [{"name": name, "partitions": found} for name, found in by_topic.items()],
                    "total_bytes": total,
                    "usable_bytes": usable,
                }
            )
        return {"results": results}

    def alter_replica_log_dirs(self, _: RequestContext, request: Any) -> Reply:
        """KIP-113. A replica may be told to stay where it is; moving it to another directory is refused."""
        outcomes: dict[str, list[Fields]] = {}
        directories = {directory for directory, _, _ in self._replicas.space()}
        for wanted in request.dirs:
            for topic in wanted.topics:
                outcomes.setdefault(topic.name, []).extend(
                    {"partition_index": index, "error_code": self._moved(topic.name, index, wanted.path, directories)}
                    for index in topic.partitions
                )
        return {"results": [{"topic_name": name, "partitions": found} for name, found in outcomes.items()]}

    def _moved(self, topic: str, index: int, path: str, directories: set[str]) -> ErrorCode:
        try:
            partition = self._replicas.get(topic, index)
        except KafkaError as error:
            return error.code
        if str(partition.log.directory.parent) == path:
            return ErrorCode.none
        if path not in directories:
            return ErrorCode.log_dir_not_found
        log.warning("%s-%d stays where it is: moving a replica to %s is not supported", topic, index, path)
        return ErrorCode.invalid_request
