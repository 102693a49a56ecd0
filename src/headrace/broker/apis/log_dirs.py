"""DescribeLogDirs: what lies in which log directory, and how much room is left."""

from typing import Any

from headrace.broker.context import Handler, Reply, RequestContext
from headrace.errors import ErrorCode
from headrace.replication.replica_manager import ReplicaManager
from headrace.wire.apis import ApiKey


class LogDirsApi:
    """Handler of DescribeLogDirs."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def routes(self) -> dict[ApiKey, Handler]:
        return {ApiKey.DESCRIBE_LOG_DIRS: self.describe_log_dirs}

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
