"""Requests from the cluster's controller: UpdateMetadata, LeaderAndIsr and StopReplica.

A request is rejected as a whole if its controller has been replaced, or if it was sent to an earlier registration of
this broker. Otherwise errors are per partition.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from headrace.broker.commands import Commands
from headrace.broker.state_changes import Issuer
from headrace.cluster.commands import StoppedReplica
from headrace.cluster.membership.updates import update_of
from headrace.cluster.metadata_cache import MetadataCache
from headrace.errors import ErrorCode, KafkaError
from headrace.server.context import Handler, Reply, RequestContext
from headrace.slices import Pace, chunks, finish
from headrace.types import PartitionState, Request, TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.encoder import Fields
from headrace.wire.items import made_of

_UNKNOWN_EPOCH: Final = -1
_NO_TOPIC_ID: Final = UUID(int=0)
_AT_ONCE: Final = 1000
"""Maximum number of partitions of a topic to handle before a pause."""

log = logging.getLogger(__name__)


class ControlApis:
    """Handles the controller's requests. `broker_epoch` returns this broker's epoch, -1 before its registration."""

    def __init__(
        self,
        commands: Commands,
        cache: MetadataCache,
        *,
        broker_epoch: Callable[[], int],
        read_configs: Callable[[Iterable[tuple[str, UUID | None]]], Awaitable[None]],
    ) -> None:
        """`read_configs` takes the names and ids of topics, and reads the settings of new ones."""
        self._commands = commands
        self._cache = cache
        self._broker_epoch = broker_epoch
        self._read_configs = read_configs
        self._controller_epoch = 0

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.LEADER_AND_ISR: self.leader_and_isr,
            ApiKey.STOP_REPLICA: self.stop_replica,
            ApiKey.UPDATE_METADATA: self.update_metadata,
        }

    async def update_metadata(self, _: RequestContext, request: Request) -> Reply:
        self._check(request, "UpdateMetadata")
        await self._read_configs((topic.topic_name, topic.topic_id) for topic in request.topic_states)
        async with self._commands.in_order:
            self._check(request, "UpdateMetadata")  # another controller's request may have been applied meanwhile
            before = self._cache.image
            update = await finish(update_of(request, before))
            await self._cache.apply(update)
            if before.brokers.keys() - self._cache.image.brokers.keys():
                await self._commands.note_departures()
            await self._commands.resign_moved(update.topics)
        self._commands.changes.updated(update)
        return {"error_code": ErrorCode.none}

    async def leader_and_isr(self, _: RequestContext, request: Request) -> Reply:
        """Lead and follow partitions."""
        self._check(request, "LeaderAndIsr")
        await self._read_configs((topic.topic_name, topic.topic_id) for topic in request.topic_states)
        states: list[PartitionState] = []
        pace = Pace()
        for topic in request.topic_states:
            for some in chunks(topic.partition_states, _AT_ONCE):
                states += [_state(topic, partition) for partition in some]
                await pace.rest()
        self._check(request, "LeaderAndIsr")  # another controller may have deleted these topics meanwhile
        errors = await self._commands.lead_and_follow(states, _issuer(request))
        results: list[Fields] = []
        for topic in request.topic_states:
            partitions: list[Fields] = []
            for some in chunks(topic.partition_states, _AT_ONCE):
                partitions += [_led_or_not(topic, partition, errors) for partition in some]
                await pace.rest()
            results.append({"topic_id": topic.topic_id, "partition_errors": partitions})
        return {"error_code": ErrorCode.none, "topics": results}

    async def stop_replica(self, _: RequestContext, request: Request) -> Reply:
        self._check(request, "StopReplica")
        stopped: list[StoppedReplica] = []
        pace = Pace()
        for topic in request.topic_states:
            for some in chunks(topic.partition_states, _AT_ONCE):
                stopped += [_stopped(topic, partition) for partition in some]
                await pace.rest()
        errors = await self._commands.stop(stopped, _issuer(request))

        def result(partition: TopicPartition) -> Fields:
            name, index = partition
            return {"topic_name": name, "partition_index": index, "error_code": errors[partition]}

        return {"error_code": ErrorCode.none, "partition_errors": made_of(tuple(errors), result)}

    def _check(self, request: Request, name: str) -> None:
        """Raise KafkaError: stale_controller_epoch, stale_broker_epoch, unsupported_version for a KRaft controller."""
        if request.is_kraft_controller:
            log.error(
                "Rejected %s from KRaft controller %d: Headrace does not support a migration to KRaft",
                name,
                request.controller_id,
            )
            raise KafkaError(ErrorCode.unsupported_version)
        epoch = self._broker_epoch()
        if request.broker_epoch not in (_UNKNOWN_EPOCH, epoch) and request.broker_epoch < epoch:
            log.info("Rejected %s for broker epoch %d: this broker's epoch is %d", name, request.broker_epoch, epoch)
            raise KafkaError(ErrorCode.stale_broker_epoch)
        if request.controller_epoch < self._controller_epoch:
            log.warning(
                "Rejected %s from controller %d: its controller epoch %d is older than %d, the latest known",
                name,
                request.controller_id,
                request.controller_epoch,
                self._controller_epoch,
            )
            raise KafkaError(ErrorCode.stale_controller_epoch)
        self._controller_epoch = request.controller_epoch


def _issuer(request: Request) -> Issuer:
    return Issuer(request.controller_id, request.controller_epoch)


def _led_or_not(topic: Any, partition: Any, errors: Mapping[TopicPartition, ErrorCode]) -> Fields:
    index = partition.partition_index
    return {"partition_index": index, "error_code": errors[TopicPartition(topic.topic_name, index)]}


def _stopped(topic: Any, partition: Any) -> StoppedReplica:
    place = TopicPartition(topic.topic_name, partition.partition_index)
    return StoppedReplica(place, partition.leader_epoch, partition.delete_partition)


def _state(topic: Any, partition: Any) -> PartitionState:
    return PartitionState(
        topic.topic_name,
        topic.topic_id or _NO_TOPIC_ID,
        partition.partition_index,
        partition.leader,
        partition.leader_epoch,
        tuple(partition.replicas),
        tuple(partition.isr),
        partition.is_new,
        partition.controller_epoch,
        partition.partition_epoch,
        tuple(partition.adding_replicas),
        tuple(partition.removing_replicas),
        partition.leader_recovery_state,
    )
