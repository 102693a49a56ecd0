"""Metadata, DescribeCluster and DescribeTopicPartitions: who is in the cluster and who leads what."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from headrace.broker.context import Handler, Reply, RequestContext
from headrace.cluster import topic_names
from headrace.cluster.controller import Controller
from headrace.cluster.image import NO_LEADER, BrokerImage, PartitionImage, TopicImage
from headrace.cluster.topic_changes import NewTopic
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.slices import Steps, in_slices
from headrace.types import Request
from headrace.wire.apis import ApiKey
from headrace.wire.items import made_of

UNKNOWN_OPERATIONS: Final = -(2**31)
"""What the authorized operations are when nobody asked (KIP-430)."""
TOPIC_OPERATIONS: Final = 0b1101_1111_1000
"""All that can be done to a topic: read, write, create, delete, alter, describe, describe and alter its settings."""
CLUSTER_OPERATIONS: Final = 0b1_1111_1010_0000
"""All that can be done to the cluster: create, alter, describe, act on it, describe and alter settings, write."""
_BROKERS, _CONTROLLERS = 1, 2


class MetadataApis:
    """Answers what clients ask before they know where to go. Missing topics may be created on the way."""

    def __init__(self, controller: Controller, config: BrokerConfig) -> None:
        self._controller = controller
        self._config = config

    def routes(self) -> dict[ApiKey, Handler]:
        """The handlers by API."""
        return {
            ApiKey.METADATA: self.metadata,
            ApiKey.DESCRIBE_CLUSTER: self.describe_cluster,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: self.describe_topic_partitions,
        }

    def metadata(self, context: RequestContext, request: Request) -> Reply | Awaitable[Reply]:
        """Brokers and the topics asked for: all where the list is null (version 0: empty)."""
        asked = request.topics
        if asked is None or (context.api_version == 0 and not asked):
            return self._metadata(
                context,
                request,
                made_of(tuple(self._controller.image.topics.values()), lambda topic: self._topic(context, topic)),
            )
        if context.api_version < 12 and any(_by_id(topic) or topic.name is None for topic in asked):
            return _invalid_metadata(asked)
        if any(_by_id(topic) for topic in asked):
            return self._metadata(context, request, self._topics_by_id(context, asked))
        if any(topic.name is None for topic in asked):
            return _invalid_metadata(asked)
        names = list(dict.fromkeys(topic.name for topic in asked))
        missing = [name for name in names if name not in self._controller.image.topics]
        may_create = self._config.auto_create_topics_enable and getattr(request, "allow_auto_topic_creation", True)
        if missing and may_create:
            return self._create_and_answer(context, request, names, missing)
        return self._metadata(context, request, made_of(names, lambda name: self._topic_by_name(context, name, {})))

    def describe_cluster(self, context: RequestContext, request: Request) -> Reply:
        """Brokers, controller and cluster id; the brokers' endpoints only, as no broker here is a KRaft controller."""
        endpoint_type = getattr(request, "endpoint_type", _BROKERS)
        if endpoint_type == _CONTROLLERS:
            raise KafkaError(
                ErrorCode.mismatched_endpoint_type, "This is a broker's endpoint; there is no separate controller."
            )
        if endpoint_type != _BROKERS:
            raise KafkaError(ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {endpoint_type}")
        image = self._controller.image
        return {
            "endpoint_type": _BROKERS,
            "cluster_id": image.cluster_id,
            "controller_id": image.controller_id,
            "brokers": [{"broker_id": node["node_id"], "is_fenced": False, **node} for node in self._brokers(context)],
            "cluster_authorized_operations": (
                CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else UNKNOWN_OPERATIONS
            ),
        }

    def describe_topic_partitions(self, context: RequestContext, request: Request) -> Reply | Steps[Reply]:
        """Partitions of topics in order of name, a page at a time: `next_cursor` says where to go on (KIP-966)."""
        return in_slices(self._page(context, request))

    def _page(self, context: RequestContext, request: Request) -> Steps[Reply]:
        image, cursor = self._controller.image, request.cursor
        first, start = (cursor.topic_name, cursor.partition_index) if cursor is not None else ("", 0)
        asked = {topic.name for topic in request.topics}
        names = sorted(name for name in asked or image.topics if name >= first)
        if start < 0 or (cursor is not None and asked and first not in asked):
            invalid = {"error_code": ErrorCode.invalid_request}
            return {"topics": made_of(tuple(asked), lambda name: {**_missing_topic(name), **invalid})}
        left = max(1, min(request.response_partition_limit, self._config.max_request_partition_size_limit))
        topics: list[dict[str, Any]] = []
        for name in names:
            yield
            if left == 0:
                return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": 0}}
            topic = image.topics.get(name)
            if topic is None:
                topics.append({**_missing_topic(name), "topic_authorized_operations": TOPIC_OPERATIONS})
                continue
            begin = start if name == first else 0
            end = min(begin + left, len(topic.partitions))
            described = self._topic(context, topic, range(begin, end))
            topics.append({**described, "topic_authorized_operations": TOPIC_OPERATIONS})
            left -= max(0, end - begin)
            if end < len(topic.partitions):
                return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": end}}
        return {"topics": topics, "next_cursor": None}

    async def _create_and_answer(
        self, context: RequestContext, request: Request, names: list[str], missing: list[str]
    ) -> Reply:
        errors: dict[str, KafkaError] = {}
        wanted = [NewTopic(name) for name in missing if not topic_names.is_internal(name)]
        try:
            results = await self._controller.create_topics(wanted)
        except KafkaError as error:
            errors = {new.name: error for new in wanted}
        else:
            for new, result in zip(wanted, results, strict=True):
                if isinstance(result, KafkaError):
                    errors[new.name] = result
        for name in filter(topic_names.is_internal, missing):
            try:
                await self._controller.create_internal_topic(name)
            except KafkaError as error:
                errors[name] = error
        return self._metadata(context, request, made_of(names, lambda name: self._topic_by_name(context, name, errors)))

    def _metadata(self, context: RequestContext, request: Request, topics: Sequence[dict[str, Any]]) -> Reply:
        image = self._controller.image
        operations = UNKNOWN_OPERATIONS
        if getattr(request, "include_cluster_authorized_operations", False):
            operations = CLUSTER_OPERATIONS
        if getattr(request, "include_topic_authorized_operations", False):
            topics = made_of(topics, lambda topic: {**topic, "topic_authorized_operations": TOPIC_OPERATIONS})
        return {
            "brokers": self._brokers(context),
            "cluster_id": image.cluster_id,
            "controller_id": image.controller_id,
            "topics": topics,
            "cluster_authorized_operations": operations,
        }

    def _topics_by_id(self, context: RequestContext, asked: Iterable[Any]) -> Sequence[dict[str, Any]]:
        image = self._controller.image

        def described(topic_id: UUID) -> dict[str, Any]:
            topic = image.topic_by_id(topic_id)
            if topic is not None:
                return self._topic(context, topic)
            return {"error_code": ErrorCode.unknown_topic_id, "name": None, "topic_id": topic_id, "partitions": ()}

        return made_of(tuple(dict.fromkeys(topic.topic_id for topic in asked if topic.topic_id is not None)), described)

    def _topic_by_name(self, context: RequestContext, name: str, errors: dict[str, KafkaError]) -> dict[str, Any]:
        topic = self._controller.image.topics.get(name)
        if topic is not None:
            return self._topic(context, topic)
        described = _missing_topic(name)
        if name in errors and errors[name].code != ErrorCode.topic_already_exists:
            code = errors[name].code
            # which clients wait for; they take no other error of a topic for one that passes
            described["error_code"] = ErrorCode.leader_not_available if code == ErrorCode.not_controller else code
        return described

    def _topic(self, context: RequestContext, topic: TopicImage, indexes: range | None = None) -> dict[str, Any]:
        chosen = indexes if indexes is not None else range(len(topic.partitions))
        return {
            "name": topic.name,
            "topic_id": topic.topic_id,
            "is_internal": topic_names.is_internal(topic.name),
            "partitions": made_of(
                chosen, lambda index: self._partition(context, index, topic.partitions[index]), few=64
            ),
        }

    def _partition(self, context: RequestContext, index: int, partition: PartitionImage) -> dict[str, Any]:
        brokers = self._controller.image.brokers
        leader = brokers.get(partition.leader)
        error = ErrorCode.none
        if leader is None:
            error = ErrorCode.leader_not_available
        elif self._address(context, leader) is None:
            error = ErrorCode.listener_not_found if context.api_version >= 6 else ErrorCode.leader_not_available
        return {
            "error_code": error,
            "partition_index": index,
            "leader_id": NO_LEADER if error else partition.leader,
            "leader_epoch": partition.leader_epoch,
            "replica_nodes": partition.replicas,
            "isr_nodes": partition.isr,
            "offline_replicas": [replica for replica in partition.replicas if replica not in brokers],
            "eligible_leader_replicas": (),
            "last_known_elr": (),
        }

    def _brokers(self, context: RequestContext) -> list[dict[str, Any]]:
        described = []
        for broker in self._controller.image.brokers.values():
            address = self._address(context, broker)
            if address is not None:
                described.append({"node_id": broker.id, "host": address[0], "port": address[1], "rack": broker.rack})
        return described

    def _address(self, context: RequestContext, broker: BrokerImage) -> tuple[str, int] | None:
        """Where this client finds `broker`: for this broker, if nothing is advertised, what the client reached."""
        if broker.id == self._config.node_id and self._config.advertised_listeners is None:
            host, port = context.local_address
            return host.removeprefix("::ffff:"), port
        endpoint = broker.endpoint(context.listener)
        return (endpoint.host, endpoint.port) if endpoint else None


def _by_id(topic: Any) -> bool:
    return getattr(topic, "topic_id", None) is not None


def _missing_topic(name: str) -> dict[str, Any]:
    valid = topic_names.is_valid(name)
    return {
        "error_code": ErrorCode.unknown_topic_or_partition if valid else ErrorCode.invalid_topic_exception,
        "name": name,
        "topic_id": None,
        "is_internal": topic_names.is_internal(name),
        "partitions": (),
    }


def _invalid_metadata(asked: Sequence[Any]) -> Reply:
    """The answer to topics without a name, or with an id before version 12: every topic is refused."""
    return {
        "brokers": (),
        "cluster_id": None,
        "controller_id": NO_LEADER,
        "error_code": ErrorCode.invalid_request,
        "topics": made_of(
            asked,
            lambda topic: {
                "error_code": ErrorCode.invalid_request,
                "name": topic.name or "",
                "topic_id": getattr(topic, "topic_id", None),
                "partitions": (),
            },
        ),
    }
