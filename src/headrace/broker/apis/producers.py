"""InitProducerId and DescribeProducers."""

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.producer_state import PackedProducer
from headrace.replication.replica_manager import ReplicaManager
from headrace.server.context import Handler, Reply, RequestContext
from headrace.storage.log.producers.producer_snapshot import ProducerEntry
from headrace.wire.apis import ApiKey
from headrace.wire.encoder import Fields
from headrace.wire.items import Items


class ProducersApi:
    """Handles InitProducerId and DescribeProducers.

    `next_producer_id` returns an unused id, and `init_transactional` handles requests with a transactional id.
    """

    def __init__(
        self,
        replicas: ReplicaManager,
        next_producer_id: Callable[[], Awaitable[int]],
        init_transactional: Handler,
    ) -> None:
        self._replicas = replicas
        self._next_producer_id = next_producer_id
        self._init_transactional = init_transactional

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.INIT_PRODUCER_ID: self.init_producer_id,
            ApiKey.DESCRIBE_PRODUCERS: self.describe_producers,
        }

    async def init_producer_id(self, context: RequestContext, request: Any) -> Any:
        """Assign a producer id (KIP-98). An idempotent producer always gets a new one, with epoch 0."""
        if request.transactional_id == "":
            raise KafkaError(ErrorCode.invalid_request, "a transactional id cannot be empty")
        if (getattr(request, "producer_id", -1) == -1) != (getattr(request, "producer_epoch", -1) == -1):
            raise KafkaError(ErrorCode.invalid_request, "give both producer id and epoch, or neither")
        if request.transactional_id is not None:
            reply = self._init_transactional(context, request)
            return await reply if isawaitable(reply) else reply
        return {"error_code": ErrorCode.none, "producer_id": await self._next_producer_id(), "producer_epoch": 0}

    def describe_producers(self, _: RequestContext, request: Any) -> Reply:
        """Describe the active producers of partitions that this broker leads or follows (KIP-664)."""

        def described(topic: Any) -> Fields:
            return {
                "name": topic.name,
                "partitions": Items(topic.partition_indexes, lambda index: self._describe_one(topic.name, index)),
            }

        # Create items only during encoding, because a partition may have thousands of producers.
        return {"topics": Items(request.topics, described)}

    def _describe_one(self, topic: str, index: int) -> Fields:
        try:
            producers = self._replicas.readable(topic, index).packed_producers()
        except KafkaError as error:
            return {
                "partition_index": index,
                "error_code": error.code,
                "error_message": error.message,
                "active_producers": [],
            }
        return {
            "partition_index": index,
            "error_code": ErrorCode.none,
            "error_message": None,
            "active_producers": Items(producers, _producer),
        }


def _producer(packed: PackedProducer) -> Fields:
    entry = ProducerEntry.unpacked(packed)
    return {
        "producer_id": entry.producer_id,
        "producer_epoch": entry.epoch,
        "last_sequence": entry.last_sequence,
        "last_timestamp": entry.timestamp,
        "coordinator_epoch": entry.coordinator_epoch,
        "current_txn_start_offset": entry.current_txn_first_offset,
    }
