"""Create, grow and delete topics at the request of clients, on the broker that is the controller.

As in Kafka, creations and deletions only write nodes that any broker may write, and the controller watches them.
Partitions are added by the controller itself, because it also writes the topic's node when it moves replicas. The reply
waits until this broker announces the change to clients.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import TypeVar

from headrace.cluster import topic_changes, znodes
from headrace.cluster.controller.office import decided_at_once
from headrace.cluster.drafts import Draft
from headrace.cluster.failures import StoreFailures
from headrace.cluster.image import NO_LEADER, Assignment, ConfigResource, MetadataImage, TopicImage
from headrace.cluster.loading import decoded
from headrace.cluster.membership.member_admin import MemberAdmin
from headrace.cluster.metadata_cache import MetadataCache
from headrace.cluster.offices.candidate import Candidate
from headrace.cluster.store import BadVersionError, Create, MetadataStore, NodeExistsError, NoNodeError, Set
from headrace.cluster.topic_changes import NewPartitions, NewTopic
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.types import TopicPartition

T = TypeVar("T")


class ClusterTopicAdmin:
    """Changes the topics of a cluster. All changes raise KafkaError(not_controller) on other brokers."""

    def __init__(
        self,
        store: MetadataStore,
        cache: MetadataCache,
        candidate: Candidate,
        admin: MemberAdmin,
        config: BrokerConfig,
        failures: StoreFailures,
    ) -> None:
        self._store = store
        self._cache = cache
        self._candidate = candidate
        self._admin = admin
        self._config = config
        self._failures = failures
        self._random = Random()
        self._waiting: set[asyncio.Event] = set()
        cache.attach(self)

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, timeout_s: float
    ) -> list[TopicImage | KafkaError]:
        """Create all valid topics, and wait until they have leaders. Return the topic or the error for each."""
        self._candidate.current()
        draft = Draft(self._cache.image)
        size = len(topics) + sum(max(new.partitions, len(new.assignments)) for new in topics)
        results = await decided_at_once(
            size, lambda: topic_changes.create_topics(draft, topics, self._config, self._random)
        )
        if validate_only:
            return results
        for index, topic in enumerate(results):
            if isinstance(topic, TopicImage):
                try:
                    with self._failures.answering():
                        await asyncio.shield(self._admin.write_topic(topic, draft))
                except KafkaError as error:
                    results[index] = error.with_traceback(None)
        created = [topic for topic in results if isinstance(topic, TopicImage)]
        late = await self._until(
            lambda image: [topic.name for topic in created if not _is_led(image, topic.name, len(topic.partitions))],
            timeout_s,
        )
        return [
            KafkaError(ErrorCode.request_timed_out) if isinstance(topic, TopicImage) and topic.name in late else topic
            for topic in results
        ]

    async def create_partitions(
        self, requests: Sequence[NewPartitions], *, validate_only: bool = False, timeout_s: float
    ) -> list[KafkaError | None]:
        """Add partitions for all valid requests, and wait until they have leaders; with `validate_only`, only check.

        Return None or the error for each request.
        """
        self._candidate.current()
        results: list[KafkaError | None] = []
        totals: dict[str, int] = {}
        for new in requests:
            try:
                with self._failures.answering():
                    await asyncio.shield(self._grow(new, validate_only=validate_only))
            except KafkaError as error:
                results.append(error.with_traceback(None))
            else:
                results.append(None)
                totals[new.name] = new.total
        if validate_only:
            return results
        late = await self._until(
            lambda image: [name for name, total in totals.items() if not _is_led(image, name, total)], timeout_s
        )
        return [
            KafkaError(ErrorCode.request_timed_out) if error is None and new.name in late else error
            for new, error in zip(requests, results, strict=True)
        ]

    async def _grow(self, new: NewPartitions, *, validate_only: bool) -> None:
        path = znodes.topic_path(new.name)
        while True:
            try:
                node = await self._store.get(path)
            except NoNodeError:
                raise KafkaError(
                    ErrorCode.unknown_topic_or_partition, f"The topic '{new.name}' does not exist."
                ) from None
            topic_id, assignments = decoded(path, znodes.decode_assignments, node.data)
            if any(assignment.is_moving for assignment in assignments.values()):
                raise KafkaError(
                    ErrorCode.reassignment_in_progress,
                    f"A partition reassignment is in progress for the topic '{new.name}'.",
                )
            grown = topic_changes.grow_topic(Draft(self._cache.image), new, self._random)
            if validate_only:
                return
            for index in range(len(assignments), len(grown.partitions)):
                assignments[index] = Assignment(grown.partitions[index].replicas)
            data = znodes.encode_assignments(topic_id or grown.topic_id, assignments)
            try:
                await self._candidate.current().grow(new.name, Set(path, data, node.stat.version))
            except (BadVersionError, NoNodeError):
                continue  # the controller has begun a reassignment, or deleted the topic
            return

    async def delete_topics(
        self, names: Sequence[str], ids: Mapping[str, uuid.UUID] = MappingProxyType({}), *, timeout_s: float
    ) -> list[KafkaError | None]:
        """Mark topics for deletion, and wait until clients cannot use them. Return None or the error for each name.

        A topic in `ids` is deleted only if it has that id.
        """
        self._candidate.current()
        results: dict[str, KafkaError | None] = {}
        for name in names:
            results[name] = None
            known = self._cache.image.topics.get(name)
            if known is None or ids.get(name, known.topic_id) != known.topic_id:
                results[name] = KafkaError(ErrorCode.unknown_topic_or_partition)
                continue
            try:
                with self._failures.answering():
                    await asyncio.shield(self._mark(name))
            except KafkaError as error:
                results[name] = error.with_traceback(None)
        marked = [name for name, error in results.items() if error is None]
        late = await self._until(lambda image: [name for name in marked if name in image.topics], timeout_s)
        results.update((name, KafkaError(ErrorCode.request_timed_out)) for name in late)
        return [results[name] for name in names]

    async def _mark(self, name: str) -> None:
        try:
            await self._store.multi([Create(znodes.deletion_path(name))])
        except NodeExistsError:
            return  # it is being deleted
        self._failures.note_written()

    async def led_by(self, leaders: Mapping[TopicPartition, int], timeout_s: float) -> list[TopicPartition]:
        """Wait until this broker announces these leaders. Return the partitions that lack them after the timeout."""

        def missing(image: MetadataImage) -> list[TopicPartition]:
            return [item for item, leader in leaders.items() if _leader(image, *item) != leader]

        return await self._until(missing, timeout_s)

    async def _until(self, missing: Callable[[MetadataImage], list[T]], timeout_s: float) -> list[T]:
        """Wait until nothing is missing in the image. Return what is still missing at the timeout."""
        news = asyncio.Event()
        self._waiting.add(news)
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                while missing(self._cache.image):
                    news.clear()
                    await news.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(news)
        return missing(self._cache.image)

    # Changes of the image

    def on_topics_changed(self, topics: Iterable[TopicImage]) -> None:  # noqa: ARG002  those who wait read the image
        for news in self._waiting:
            news.set()

    async def on_topics_deleted(self, topics: Sequence[TopicImage]) -> None:
        self.on_topics_changed(topics)

    async def on_configs_changed(self, resources: Sequence[ConfigResource]) -> None:
        """Ignore the change: nothing waits for one."""


def _leader(image: MetadataImage, topic: str, index: int) -> int:
    found = image.topics.get(topic)
    return NO_LEADER if found is None or index >= len(found.partitions) else found.partitions[index].leader


def _is_led(image: MetadataImage, topic: str, partitions: int) -> bool:
    found = image.topics.get(topic)
    if found is None or len(found.partitions) < partitions:
        return False
    return all(partition.leader != NO_LEADER for partition in found.partitions)
