"""Encode the controller's orders as Kafka's requests, and decode replies. Loads the schemas, so import it late."""

import uuid
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final

from headrace.cluster.controller.batches import Announce, Lead, Send, Stop
from headrace.cluster.image import BrokerImage
from headrace.errors import ErrorCode
from headrace.types import TopicPartition
from headrace.wire.controls.leader_and_isr import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
)
from headrace.wire.controls.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
)
from headrace.wire.controls.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)

REPLIES: Final[Mapping[type, type]] = {
    LeaderAndIsrRequest: LeaderAndIsrResponse,
    UpdateMetadataRequest: UpdateMetadataResponse,
    StopReplicaRequest: StopReplicaResponse,
}
_PROTOCOLS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


class Orders:
    """Encodes the orders of one controller. `listener` is the inter-broker listener."""

    def __init__(self, controller_id: int, epoch: int, listener: str) -> None:
        self._head: dict[str, Any] = {"controller_id": controller_id, "controller_epoch": epoch}
        self._listener = listener
        self._announced: tuple[Announce, tuple[UpdateMetadataTopicState, ...]] | None = None
        """The topics of the latest UpdateMetadata, which all brokers get."""

    def request(self, send: Send, topic_ids: Mapping[str, uuid.UUID]) -> Any:
        """Return the request that carries the order of `send`; its class is a key of `REPLIES`."""
        head = {**self._head, "broker_epoch": send.broker_epoch}
        match send.order:
            case Lead(partitions, leaders):
                return LeaderAndIsrRequest(
                    **head,
                    topic_states=_led_topics(partitions),
                    live_leaders=tuple(self._live_leader(broker) for broker in leaders),
                )
            case Announce(brokers, _):
                return UpdateMetadataRequest(
                    **head,
                    topic_states=self._topics(send.order, topic_ids),
                    live_brokers=tuple(map(_live_broker, brokers)),
                )
            case Stop(replicas):
                return StopReplicaRequest(**head, topic_states=_stopped_topics(replicas))

    def _live_leader(self, broker: BrokerImage) -> LeaderAndIsrLiveLeader:
        endpoint = broker.endpoint(self._listener)
        host, port = ("", -1) if endpoint is None else (endpoint.host, endpoint.port)
        fields: Any = {"broker_id": broker.id, "host_name": host, "port": port}
        return LeaderAndIsrLiveLeader(**fields)

    def _topics(self, order: Announce, topic_ids: Mapping[str, uuid.UUID]) -> tuple[UpdateMetadataTopicState, ...]:
        if self._announced is None or self._announced[0] is not order:
            self._announced = order, _announced_topics(order, topic_ids)
        return self._announced[1]


def errors_in(send: Send, reply: Any, topic_names: Mapping[uuid.UUID, str]) -> dict[TopicPartition, ErrorCode]:
    """Return the error code of every partition in a reply to LeaderAndIsr or StopReplica.

    Leaves out topics (LeaderAndIsr) whose ids are not in `topic_names`, and stopped replicas that are not deleted.
    """
    if isinstance(reply, LeaderAndIsrResponse):
        return {
            TopicPartition(topic_names[topic.topic_id], partition.partition_index): partition.error_code
            for topic in reply.topics
            if topic.topic_id is not None and topic.topic_id in topic_names
            for partition in topic.partition_errors
        }
    deleted = send.order.replicas if isinstance(send.order, Stop) else {}
    found = {TopicPartition(item.topic_name, item.partition_index): item.error_code for item in reply.partition_errors}
    return {partition: error for partition, error in found.items() if deleted[partition].delete}


def _by_topic(partitions: Iterable[TopicPartition]) -> Iterable[tuple[str, list[TopicPartition]]]:
    for name, found in groupby(sorted(partitions), key=lambda partition: partition.topic):
        yield name, list(found)


def _led_topics(partitions: Mapping[TopicPartition, Any]) -> tuple[LeaderAndIsrTopicState, ...]:
    topics = []
    for name, found in _by_topic(partitions):
        states = []
        for partition in found:
            state = partitions[partition]
            fields: Any = {
                "partition_index": partition.partition,
                "controller_epoch": state.controller_epoch,
                "leader": state.leader,
                "leader_epoch": state.leader_epoch,
                "isr": state.isr,
                "partition_epoch": state.partition_epoch,
                "replicas": state.replicas,
                "adding_replicas": state.adding_replicas,
                "removing_replicas": state.removing_replicas,
                "is_new": state.is_new,
                "leader_recovery_state": state.leader_recovery_state,
            }
            states.append(LeaderAndIsrPartitionState(**fields))
        topic_id = partitions[found[0]].topic_id
        topics.append(LeaderAndIsrTopicState(topic_name=name, topic_id=topic_id, partition_states=tuple(states)))
    return tuple(topics)


def _announced_topics(order: Announce, topic_ids: Mapping[str, uuid.UUID]) -> tuple[UpdateMetadataTopicState, ...]:
    topics = []
    for name, found in _by_topic(order.partitions):
        states = []
        for partition in found:
            state, replicas, offline = order.partitions[partition]
            fields: Any = {
                "partition_index": partition.partition,
                "controller_epoch": state.controller_epoch,
                "leader": state.leader,
                "leader_epoch": state.leader_epoch,
                "isr": state.isr,
                "zk_version": state.version,
                "replicas": replicas,
                "offline_replicas": offline,
            }
            states.append(UpdateMetadataPartitionState(**fields))
        topic_id = topic_ids.get(name)
        topics.append(UpdateMetadataTopicState(topic_name=name, topic_id=topic_id, partition_states=tuple(states)))
    return tuple(topics)


def _stopped_topics(replicas: Mapping[TopicPartition, Any]) -> tuple[StopReplicaTopicState, ...]:
    topics = []
    for name, found in _by_topic(replicas):
        states = []
        for partition in found:
            _, leader_epoch, delete = replicas[partition]
            fields: Any = {
                "partition_index": partition.partition,
                "leader_epoch": leader_epoch,
                "delete_partition": delete,
            }
            states.append(StopReplicaPartitionState(**fields))
        topics.append(StopReplicaTopicState(topic_name=name, partition_states=tuple(states)))
    return tuple(topics)


def _live_broker(broker: BrokerImage) -> UpdateMetadataBroker:
    endpoints = []
    for endpoint in broker.endpoints:
        fields: Any = {
            "port": endpoint.port,
            "host": endpoint.host,
            "listener": endpoint.listener,
            "security_protocol": _PROTOCOLS[endpoint.security_protocol],
        }
        endpoints.append(UpdateMetadataEndpoint(**fields))
    named: Any = {"id": broker.id, "endpoints": tuple(endpoints), "rack": broker.rack}
    return UpdateMetadataBroker(**named)
