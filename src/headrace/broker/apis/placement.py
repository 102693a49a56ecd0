"""ElectLeaders and reassignments of partitions, in a cluster of one broker.

This broker has the only replica of every partition, so elections are never needed, and no reassignment is possible.
"""

from typing import Any, Final

from headrace.cluster.image import PartitionImage
from headrace.cluster.metadata_cache import MetadataCache
from headrace.errors import ErrorCode, KafkaError
from headrace.server.context import Handler, Reply, RequestContext
from headrace.types import Request
from headrace.wire.apis import ApiKey
from headrace.wire.encoder import Fields
from headrace.wire.items import made_of

PREFERRED: Final = 0
UNCLEAN: Final = 1


class PlacementApis:
    """Handles ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.ELECT_LEADERS: self.elect_leaders,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: self.alter_partition_reassignments,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: self.list_partition_reassignments,
        }

    def elect_leaders(self, _: RequestContext, request: Request) -> Reply:
        """Refuse elections, which no partition needs (KIP-460). The reply to a request for all partitions is empty."""
        election_type = getattr(request, "election_type", PREFERRED)
        if election_type not in (PREFERRED, UNCLEAN):
            raise KafkaError(
                ErrorCode.invalid_request, f"Unknown election type {election_type}: use 0 (preferred) or 1 (unclean)."
            )

        def results_of(topic: Any) -> Fields:
            return {
                "topic": topic.topic,
                "partition_result": made_of(
                    topic.partitions, lambda index: {"partition_id": index, **self._not_needed(topic.topic, index)}
                ),
            }

        return {
            "error_code": ErrorCode.none,
            "replica_election_results": made_of(request.topic_partitions or (), results_of),
        }

    def alter_partition_reassignments(self, _: RequestContext, request: Request) -> Reply:
        """Refuse reassignments, except to the current replicas (KIP-455)."""

        def response_to(topic: Any) -> Fields:
            def partition(wanted: Any) -> Fields:
                index = wanted.partition_index
                return {"partition_index": index, **self._reassigned(topic.name, index, wanted.replicas)}

            return {"name": topic.name, "partitions": made_of(topic.partitions, partition)}

        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "responses": made_of(request.topics, response_to),
        }

    def list_partition_reassignments(self, _: RequestContext, request: Request) -> Reply:
        """Return an empty list."""
        return {"error_code": ErrorCode.none, "error_message": None, "topics": ()}

    def _not_needed(self, topic: str, index: int) -> Fields:
        if self._partition(topic, index) is None:
            return _UNKNOWN
        return {
            "error_code": ErrorCode.election_not_needed,
            "error_message": "Leader election not needed for topic partition.",
        }

    def _reassigned(self, topic: str, index: int, replicas: tuple[int, ...] | None) -> Fields:
        partition = self._partition(topic, index)
        if partition is None:
            return _UNKNOWN
        if replicas is None:
            return {"error_code": ErrorCode.no_reassignment_in_progress, "error_message": None}
        if tuple(replicas) == partition.replicas:
            return {"error_code": ErrorCode.none, "error_message": None}
        return {
            "error_code": ErrorCode.invalid_replica_assignment,
            "error_message": f"Invalid replicas {list(replicas)}: the only broker is {partition.replicas[0]}.",
        }

    def _partition(self, topic: str, index: int) -> PartitionImage | None:
        found = self._cache.image.topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index]


_UNKNOWN: Final[Fields] = {
    "error_code": ErrorCode.unknown_topic_or_partition,
    "error_message": "This server does not host this topic-partition.",
}
