"""Metadata, DescribeCluster and DescribeTopicPartitions.

Metadata requests are frequent and their replies large. Whole replies are cached until the image changes, and
encoded topics until the topic changes.
"""

import asyncio
from collections.abc import Awaitable, Hashable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

from headrace.broker.apis.answer_cache import AnswerCache
from headrace.broker.apis.partition_fragments import DESCRIBED, BrokersSeen, encode_partitions, metadata_layout
from headrace.cluster import topic_names
from headrace.cluster.admin import ClusterAdmin
from headrace.cluster.image import NO_LEADER, BrokerImage, MetadataImage, TopicImage
from headrace.cluster.metadata_cache import MetadataCache
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.server.context import Answer, Handler, RawReply, Reply, RequestContext
from headrace.server.frames import InvalidRequestError
from headrace.slices import Steps, finish
from headrace.types import Request
from headrace.wire.apis import ApiKey, item_encoder, schema
from headrace.wire.encoder import EncodedItems

UNKNOWN_OPERATIONS: Final = -(2**31)
"""Value of authorized operations that were not requested (KIP-430)."""
TOPIC_OPERATIONS: Final = 0b1101_1111_1000
"""All operations on a topic: read, write, create, delete, alter, describe, describe and alter configs."""
CLUSTER_OPERATIONS: Final = 0b1_1111_1010_0000
"""All operations on a cluster: create, alter, describe, cluster action, describe/alter configs, idempotent write."""
ANSWERS_BYTES: Final = 8 * 1024 * 1024
"""Size of the cache of whole replies, in bytes."""
TOPICS_BYTES: Final = 16 * 1024 * 1024
"""Size of the cache of encoded topics, in bytes."""
_MOST_NAMES: Final = 100
"""Replies for more named topics are not cached: their keys would be too large. The reply for all topics is cached."""
_NAMES_A_STEP: Final = 500
_COST_A_STEP: Final = 2_000
"""Cost of encoding without a pause: 1 for a partition, about 20 for a topic."""
_COPIED_BYTES: Final = 4096
_FIRST_METADATA_S: Final = 10.0
_BROKERS, _CONTROLLERS = 1, 2


class MetadataApis:
    """Handles Metadata, which may create missing topics, DescribeCluster and DescribeTopicPartitions."""

    def __init__(self, cache: MetadataCache, admin: ClusterAdmin, config: BrokerConfig) -> None:
        self._cache = cache
        self._admin = admin
        self._config = config
        self._answers: AnswerCache[bytes] = AnswerCache(ANSWERS_BYTES)
        self._topics: AnswerCache[bytes] = AnswerCache(TOPICS_BYTES)

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.METADATA: self.metadata,
            ApiKey.DESCRIBE_CLUSTER: self.describe_cluster,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: self.describe_topic_partitions,
        }

    def metadata(self, context: RequestContext, request: Request) -> Answer:
        """Return the brokers and the requested topics: all if the list is null (version 0: empty)."""
        if not self._cache.is_complete:
            return self._when_known(context, request)
        key = self._key(context, request)
        if key is not None:
            kept = self._answers.get(key, self._cache.image)
            if kept is not None:
                return _raw(kept)
        return self._metadata(context, request, key)

    async def _when_known(self, context: RequestContext, request: Request) -> Reply:
        await self._wait_until_known()
        reply = await finish(self._metadata(context, request, None))
        return await reply if isinstance(reply, Awaitable) else reply

    async def _wait_until_known(self) -> None:
        """Wait for the controller's first metadata. Raises InvalidRequestError if no brokers arrive in time.

        After a reply without brokers, librdkafka forgets all brokers and stops working. KafkaJS does not retry after
        UNKNOWN_TOPIC_OR_PARTITION.
        """
        try:
            async with asyncio.timeout(_FIRST_METADATA_S):
                await self._cache.wait_until_complete()
        except TimeoutError:
            if not self._cache.image.brokers:
                raise InvalidRequestError(
                    f"the controller has not sent metadata to this broker within {_FIRST_METADATA_S:g} s of the request"
                ) from None
            self._cache.await_topics(())  # the missing topics were deleted meanwhile

    def _key(self, context: RequestContext, request: Request) -> Hashable | None:
        """Return everything that the reply depends on besides the image; None if the reply is not cached."""
        asked = request.topics
        names: tuple[Any, ...] | None = None
        if asked is not None:
            if len(asked) > _MOST_NAMES:
                return None
            names = tuple([(topic.name, _id_of(topic)) for topic in asked])
        return (
            context.api_version,
            context.listener,
            context.local_address,
            getattr(request, "include_cluster_authorized_operations", False),
            getattr(request, "include_topic_authorized_operations", False),
            names,
        )

    def _metadata(
        self, context: RequestContext, request: Request, key: Hashable | None
    ) -> Steps[Reply | Awaitable[Reply]]:
        asked = request.topics
        image = self._cache.image
        if asked is None or (context.api_version == 0 and not asked):
            answer = yield from self._describe(context, request, image, list(image.topics))
            self._answers.put(key, image, answer, len(answer))
            return _raw(answer)
        names: dict[str | None, None] = {}
        ids: dict[Any, None] = {}
        for begin in range(0, len(asked), _NAMES_A_STEP):
            part = asked[begin : begin + _NAMES_A_STEP]
            names.update(dict.fromkeys([topic.name for topic in part]))
            ids.update(dict.fromkeys([_id_of(topic) for topic in part]))
            yield
        if context.api_version < 12 and (None in names or any(item is not None for item in ids)):
            return _raw((yield from _invalid_metadata(context.api_version, asked)))
        if any(item is not None for item in ids):
            ids.pop(None, None)
            return _raw((yield from self._describe(context, request, image, [], ids)))
        if None in names:
            return _raw((yield from _invalid_metadata(context.api_version, asked)))
        wanted = [name for name in names if name is not None]
        missing = [name for name in wanted if name not in image.topics]
        yield
        if not missing:
            answer = yield from self._describe(context, request, image, wanted)
            if key is not None:
                self._answers.put(key, image, answer, len(answer) + sum(100 + len(name) for name in wanted))
            return _raw(answer)
        if self._config.auto_create_topics_enable and getattr(request, "allow_auto_topic_creation", True):
            return self._create_and_answer(context, request, wanted, missing)
        return _raw((yield from self._describe(context, request, image, wanted)))

    def describe_cluster(self, context: RequestContext, request: Request) -> Answer:
        """Return brokers, controller and cluster id. Controller endpoints are unsupported: this is not KRaft."""
        endpoint_type = getattr(request, "endpoint_type", _BROKERS)
        if endpoint_type == _CONTROLLERS:
            raise KafkaError(
                ErrorCode.mismatched_endpoint_type,
                "Controllers have no separate endpoints: use endpoint type 1 (brokers).",
            )
        if endpoint_type != _BROKERS:
            raise KafkaError(
                ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {endpoint_type}: use 1 (brokers)."
            )
        if not self._cache.is_complete:
            return self._cluster_when_known(context, request)
        return self._cluster(context, request)

    async def _cluster_when_known(self, context: RequestContext, request: Request) -> Reply:
        await self._wait_until_known()
        return self._cluster(context, request)

    def _cluster(self, context: RequestContext, request: Request) -> Reply:
        image = self._cache.image
        return {
            "endpoint_type": _BROKERS,
            "cluster_id": image.cluster_id,
            "controller_id": image.controller_id,
            "brokers": [{"broker_id": node["node_id"], "is_fenced": False, **node} for node in self._brokers(context)],
            "cluster_authorized_operations": (
                CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else UNKNOWN_OPERATIONS
            ),
        }

    def describe_topic_partitions(self, context: RequestContext, request: Request) -> Steps[Reply]:
        """Return a page of partitions, sorted by topic; `next_cursor` is the start of the next page (KIP-966)."""
        image, cursor = self._cache.image, request.cursor
        first, start = (cursor.topic_name, cursor.partition_index) if cursor is not None else ("", 0)
        asked = {topic.name for topic in request.topics}
        yield
        names = sorted(name for name in asked or image.topics if name >= first)
        yield
        encode = item_encoder(ApiKey.DESCRIBE_TOPIC_PARTITIONS, context.api_version, "topics")
        out = bytearray()
        if start < 0 or (cursor is not None and asked and first not in asked):
            for name in asked:
                encode(out, {**_missing_topic(name, None, {}), "error_code": ErrorCode.invalid_request})
                yield
            return {"topics": EncodedItems(len(asked), out)}
        left = max(1, min(request.response_partition_limit, self._config.max_request_partition_size_limit))
        brokers = self._brokers_seen(context, image)
        next_cursor: dict[str, Any] | None = None
        count = 0
        for count, name in enumerate(names):
            if left == 0:
                next_cursor = {"topic_name": name, "partition_index": 0}
                break
            topic = image.topics.get(name)
            if topic is None:
                encode(out, {**_missing_topic(name, None, {}), "topic_authorized_operations": TOPIC_OPERATIONS})
                yield
                continue
            begin = start if name == first else 0
            end = min(begin + left, len(topic.partitions))
            items = encode_partitions(topic.partitions[begin:end], DESCRIBED, brokers, begin)
            encode(out, {**_named(topic), "partitions": items, "topic_authorized_operations": TOPIC_OPERATIONS})
            yield
            left -= items.number
            if end < len(topic.partitions):
                count += 1
                next_cursor = {"topic_name": name, "partition_index": end}
                break
        else:
            count = len(names)
        return {"topics": EncodedItems(count, out), "next_cursor": next_cursor}

    async def _create_and_answer(
        self, context: RequestContext, request: Request, names: list[str], missing: list[str]
    ) -> Reply:
        errors: dict[str, KafkaError] = {}
        wanted = [name for name in missing if not topic_names.is_internal(name)]
        try:
            results = await self._admin.auto_create(wanted)
        except KafkaError as error:
            errors = dict.fromkeys(wanted, error)
        else:
            for name, result in zip(wanted, results, strict=True):
                if isinstance(result, KafkaError):
                    errors[name] = result
        for name in filter(topic_names.is_internal, missing):
            try:
                await self._admin.create_internal_topic(name)
            except KafkaError as error:
                errors[name] = error
        return _raw(await finish(self._describe(context, request, self._cache.image, names, errors=errors)))

    def _describe(
        self,
        context: RequestContext,
        request: Request,
        image: MetadataImage,
        names: Iterable[str],
        ids: Iterable[Any] = (),
        errors: dict[str, KafkaError] | None = None,
    ) -> Steps[bytes]:
        """Encode the reply for these topics."""
        version = context.api_version
        operations = UNKNOWN_OPERATIONS
        if getattr(request, "include_cluster_authorized_operations", False):
            operations = CLUSTER_OPERATIONS
        topic_operations = UNKNOWN_OPERATIONS
        if getattr(request, "include_topic_authorized_operations", False):
            topic_operations = TOPIC_OPERATIONS
        brokers = self._brokers_seen(context, image)
        encode = item_encoder(ApiKey.METADATA, version, "topics")
        layout = metadata_layout(version)
        out = bytearray()
        count = cost = 0
        found: Iterator[tuple[str | None, Any, TopicImage | None]] = chain(
            ((name, None, image.topics.get(name)) for name in names),
            ((None, topic_id, image.topic_by_id(topic_id)) for topic_id in ids),
        )
        for name, topic_id, topic in found:
            count += 1
            if topic is not None:
                key = (topic.name, version, topic_operations, brokers)
                kept = self._topics.get(key, topic)
                if kept is None:
                    one = bytearray()
                    items = encode_partitions(topic.partitions, layout, brokers)
                    encode(one, {**_named(topic), "partitions": items, "topic_authorized_operations": topic_operations})
                    kept = bytes(one)
                    self._topics.put(key, topic, kept, len(kept))
                    cost += 20 + items.number
                out += kept
            else:
                missing = _missing_topic(name, topic_id, errors or {})
                encode(out, {**missing, "topic_authorized_operations": topic_operations})
                cost += 20
            cost += 1
            if cost > _COST_A_STEP:
                cost = 0
                yield
        body = bytearray()
        schema(ApiKey.METADATA, version).encode_response(
            body,
            {
                "brokers": self._brokers(context),
                "cluster_id": image.cluster_id,
                "controller_id": image.controller_id,
                "topics": EncodedItems(count, out),
                "cluster_authorized_operations": operations,
            },
        )
        return bytes(body)

    def _brokers_seen(self, context: RequestContext, image: MetadataImage) -> BrokersSeen:
        brokers = image.brokers
        return BrokersSeen(
            frozenset(brokers),
            frozenset(broker_id for broker_id, broker in brokers.items() if self._address(context, broker) is not None),
        )

    def _brokers(self, context: RequestContext) -> list[dict[str, Any]]:
        described = []
        for broker in self._cache.image.brokers.values():
            address = self._address(context, broker)
            if address is not None:
                described.append({"node_id": broker.id, "host": address[0], "port": address[1], "rack": broker.rack})
        return described

    def _address(self, context: RequestContext, broker: BrokerImage) -> tuple[str, int] | None:
        """Return the advertised address of a broker; this broker's default is the address the client connected to."""
        if broker.id == self._config.node_id and self._config.advertised_listeners is None:
            host, port = context.local_address
            return host.removeprefix("::ffff:"), port
        endpoint = broker.endpoint(context.listener)
        return (endpoint.host, endpoint.port) if endpoint else None


def _id_of(topic: Any) -> Any:
    return getattr(topic, "topic_id", None)


def _named(topic: TopicImage) -> dict[str, Any]:
    return {"name": topic.name, "topic_id": topic.topic_id, "is_internal": topic_names.is_internal(topic.name)}


def _missing_topic(name: str | None, topic_id: Any, errors: Mapping[str, KafkaError]) -> dict[str, Any]:
    if name is None:
        return {"error_code": ErrorCode.unknown_topic_id, "name": None, "topic_id": topic_id, "partitions": ()}
    error = ErrorCode.unknown_topic_or_partition if topic_names.is_valid(name) else ErrorCode.invalid_topic_exception
    if name in errors and errors[name].code != ErrorCode.topic_already_exists:
        # LEADER_NOT_AVAILABLE is the only error of a topic that all clients retry.
        code = errors[name].code
        error = ErrorCode.leader_not_available if code == ErrorCode.not_controller else code
    return {
        "error_code": error,
        "name": name,
        "topic_id": None,
        "is_internal": topic_names.is_internal(name),
        "partitions": (),
    }


def _raw(answer: bytes) -> RawReply:
    # Send a large cached reply as a separate part, to avoid a copy.
    return RawReply((answer,) if len(answer) < _COPIED_BYTES else (b"", answer))


def _invalid_metadata(version: int, asked: Iterable[Any]) -> Steps[bytes]:
    """Return INVALID_REQUEST for all topics: one has no name, or has an id in a version before 12."""
    encode = item_encoder(ApiKey.METADATA, version, "topics")
    topics = bytearray()
    count = 0
    for topic in asked:
        count += 1
        encode(
            topics,
            {
                "error_code": ErrorCode.invalid_request,
                "name": topic.name or "",
                "topic_id": _id_of(topic),
                "partitions": (),
            },
        )
        yield
    body = bytearray()
    schema(ApiKey.METADATA, version).encode_response(
        body,
        {
            "brokers": (),
            "cluster_id": None,
            "controller_id": NO_LEADER,
            "error_code": ErrorCode.invalid_request,
            "topics": EncodedItems(count, topics),
        },
    )
    return bytes(body)
