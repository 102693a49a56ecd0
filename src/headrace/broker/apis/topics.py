"""CreateTopics, DeleteTopics and CreatePartitions."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from headrace.broker.apis.config_entries import Entry, topic_entries
from headrace.cluster.image import TopicImage
from headrace.cluster.metadata_cache import MetadataCache
from headrace.cluster.topic_changes import NewPartitions, NewTopic, check_records
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.server.context import Handler, Reply, RequestContext
from headrace.slices import Pace, counted
from headrace.types import Request
from headrace.wire.apis import ApiKey
from headrace.wire.items import made_of

_DUPLICATE = "Duplicate topic name."
_UNKNOWN = "This server does not host this topic-partition."
_UNKNOWN_ID = "This server does not host this topic ID."

_Deletion = tuple[str | None, uuid.UUID | None, KafkaError | None]
"""Name, id, and the error if the topic was not deleted."""


class TopicChanges(Protocol):
    """Changes topics. `timeout_s` is the maximum time to wait until clients can see the change."""

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, timeout_s: float
    ) -> Sequence[TopicImage | KafkaError]:
        """Create all valid topics. Return the topic or the error for each."""

    async def create_partitions(
        self, requests: Sequence[NewPartitions], *, validate_only: bool = False, timeout_s: float
    ) -> Sequence[KafkaError | None]:
        """Add partitions for all valid requests. Return None or the error for each request."""

    async def delete_topics(
        self, names: Sequence[str], ids: Mapping[str, uuid.UUID], *, timeout_s: float
    ) -> Sequence[KafkaError | None]:
        """Delete topics; a topic in `ids` only if it has that id. Return None or the error for each name."""


class TopicApis:
    """Handles CreateTopics, CreatePartitions and DeleteTopics."""

    def __init__(self, cache: MetadataCache, admin: TopicChanges, config: BrokerConfig) -> None:
        self._cache = cache
        self._admin = admin
        self._config = config

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.CREATE_TOPICS: self.create_topics,
            ApiKey.DELETE_TOPICS: self.delete_topics,
            ApiKey.CREATE_PARTITIONS: self.create_partitions,
        }

    async def create_topics(self, context: RequestContext, request: Request) -> Reply:
        """Create topics, or only validate the request. Reply when they are durable and have leaders."""
        repeated = await _repeated(topic.name for topic in request.topics)
        pace = Pace()
        wanted: dict[str, NewTopic] = {}
        for topic in request.topics:
            if topic.name not in repeated:
                wanted[topic.name] = _new_topic(topic)
            await pace.rest()
        new_topics = tuple(wanted.values())
        results = await self._admin.create_topics(
            new_topics,
            validate_only=request.validate_only,
            timeout_s=request.timeout.total_seconds(),
        )
        defaults = topic_entries(self._config, {})
        duplicates = [(NewTopic(name), _invalid(_DUPLICATE)) for name in repeated]
        outcomes = [*zip(new_topics, results, strict=True), *duplicates]
        return {"topics": made_of(outcomes, lambda outcome: self._created(*outcome, defaults))}

    async def delete_topics(self, context: RequestContext, request: Request) -> Reply:
        """Delete topics by name or (from version 6) by id. Reply when their logs are no longer accessible."""
        if not self._config.delete_topic_enable:
            code = ErrorCode.invalid_request if context.api_version < 3 else ErrorCode.topic_deletion_disabled
            raise KafkaError(code, "Topic deletion is disabled (delete.topic.enable=false).")
        if context.api_version < 6:
            states: list[tuple[str | None, uuid.UUID | None]] = [(name, None) for name in request.topic_names]
        else:
            states = [(topic.name, topic.topic_id) for topic in request.topics]
        outcomes, targets = await self._deletable(states)
        ids = {topic.name: topic.topic_id for topic in targets}
        errors = await self._admin.delete_topics(tuple(ids), ids, timeout_s=request.timeout.total_seconds())
        outcomes.extend((topic.name, topic.topic_id, error) for topic, error in zip(targets, errors, strict=True))
        return {"responses": made_of(outcomes, lambda outcome: _deletion(*outcome))}

    async def create_partitions(self, context: RequestContext, request: Request) -> Reply:
        """Add partitions to topics, or only validate the request."""
        check_records(len(request.topics))
        repeated = await _repeated(topic.name for topic in request.topics)
        wanted = [_new_partitions(topic) for topic in request.topics if topic.name not in repeated]
        outcome = await self._admin.create_partitions(
            wanted, validate_only=request.validate_only, timeout_s=request.timeout.total_seconds()
        )
        duplicates = [(name, _invalid(_DUPLICATE)) for name in repeated]
        results = [*((new.name, error) for new, error in zip(wanted, outcome, strict=True)), *duplicates]
        return {"results": made_of(results, lambda result: _growth(*result))}

    def _created(self, new: NewTopic, result: TopicImage | KafkaError, defaults: list[Entry]) -> dict[str, Any]:
        if isinstance(result, KafkaError):
            return _failed(new.name, result)
        overrides = {key: value for key, value in new.configs.items() if value is not None}
        return {
            "name": result.name,
            "topic_id": result.topic_id,
            "num_partitions": len(result.partitions),
            "replication_factor": len(result.partitions[0].replicas),
            "configs": topic_entries(self._config, overrides) if overrides else defaults,
        }

    async def _deletable(
        self, states: list[tuple[str | None, uuid.UUID | None]]
    ) -> tuple[list[_Deletion], list[TopicImage]]:
        """Return errors for invalid deletions, and the topics to delete."""
        image = self._cache.image
        times = await counted(states)
        outcomes: list[_Deletion] = []
        pace = Pace()
        found: dict[str, list[tuple[str | None, TopicImage]]] = {}
        for (name, topic_id), count in times.items():
            await pace.rest()
            problem: KafkaError | None = None
            topic = None
            if name is None and topic_id is None:
                problem = _invalid("Neither topic name nor id were specified.")
            elif name is not None and topic_id is not None:
                problem = _invalid("You may not specify both topic name and topic id.")
            elif count > 1:
                problem = _invalid(_DUPLICATE if name is not None else "Duplicate topic id.")
            elif topic_id is not None:
                topic = image.topic_by_id(topic_id)
                problem = None if topic else KafkaError(ErrorCode.unknown_topic_id, _UNKNOWN_ID)
            elif name is not None:
                topic = image.topics.get(name)
                problem = None if topic else KafkaError(ErrorCode.unknown_topic_or_partition, _UNKNOWN)
            if problem is not None:
                outcomes.append((name, topic_id, problem))
            elif topic is not None:
                found.setdefault(topic.name, []).append((name, topic))
        targets = []
        for same in found.values():
            if len(same) == 1:
                targets.append(same[0][1])
            else:
                both = _invalid("The provided topic name maps to an ID that was already supplied.")
                outcomes.append((same[0][1].name, same[0][1].topic_id, both))
        return outcomes, targets


def _new_topic(topic: Any) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        tuple((assignment.partition_index, assignment.broker_ids) for assignment in topic.assignments),
        {config.name: config.value for config in topic.configs},
    )


def _new_partitions(topic: Any) -> NewPartitions:
    assignments = topic.assignments
    return NewPartitions(
        topic.name, topic.count, None if assignments is None else [assignment.broker_ids for assignment in assignments]
    )


async def _repeated(names: Iterable[str]) -> set[str]:
    return {name for name, count in (await counted(names)).items() if count > 1}


def _failed(name: str, error: KafkaError) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": None,
        "error_code": error.code,
        "error_message": error.message,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": (),
    }


def _growth(name: str, error: KafkaError | None) -> dict[str, Any]:
    return {"name": name, "error_code": error.code, "error_message": error.message} if error else {"name": name}


def _deletion(name: str | None, topic_id: uuid.UUID | None, error: KafkaError | None) -> dict[str, Any]:
    code, message = (error.code, error.message) if error else (ErrorCode.none, None)
    return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, message)
