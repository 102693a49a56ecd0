"""Changes to topics and settings that a broker makes without being the controller, written as Kafka's brokers do.

The controller notices new topics in ZooKeeper, and sends them to all brokers. Only the controller makes other changes.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from headrace.cluster import topic_changes, znodes
from headrace.cluster.admin import Alteration
from headrace.cluster.drafts import Draft
from headrace.cluster.failures import StoreFailures
from headrace.cluster.image import BROKER_CONFIG, TOPIC_CONFIG, ConfigResource, MetadataImage, TopicImage
from headrace.cluster.loading import decoded
from headrace.cluster.store import BadVersionError, Create, MetadataStore, NodeExistsError, Operation, Set
from headrace.cluster.topic_changes import NewTopic
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError

_ANY_NUMBER_OF_BROKERS: Final = 1 << 30


class MemberAdmin:
    """Makes the changes of one broker. `image` returns its current metadata."""

    def __init__(
        self,
        store: MetadataStore,
        image: Callable[[], MetadataImage],
        config: BrokerConfig,
        failures: StoreFailures,
        *,
        random: Random | None = None,
    ) -> None:
        self._store = store
        self._image = image
        self._config = config
        self._failures = failures
        self._random = random or Random()

    async def auto_create(self, names: Sequence[str]) -> Sequence[TopicImage | KafkaError]:
        """Write topics. Return errors that make clients retry until the controller has elected leaders."""
        return [await self._created(NewTopic(name), ErrorCode.leader_not_available) for name in names]

    async def create_internal_topic(self, name: str) -> TopicImage:
        """Return the internal topic `name`; write its nodes if it is missing.

        The replication factor is never lowered; otherwise the first broker of a cluster would create the topic with one
        replica. Raises KafkaError: coordinator_not_available until the controller has elected leaders, or the
        reason why the topic cannot be created.
        """
        existing = self._image().topics.get(name)
        if existing is not None:
            return existing
        new = topic_changes.internal_topic(name, self._config, _ANY_NUMBER_OF_BROKERS)
        raise await self._created(new, ErrorCode.coordinator_not_available)

    async def _created(self, new: NewTopic, created: ErrorCode) -> KafkaError:
        """Write the topic, and return the error that makes the client retry, with the code `created`."""
        if not self._image().brokers:
            # A broker that has just started has no metadata yet; the requested topic probably exists.
            return KafkaError(created, "The controller has not sent metadata to this broker yet: try again.")
        draft = Draft(self._image())
        try:
            topic = topic_changes.create_topic(draft, new, self._config, self._random)
            with self._failures.answering():
                await asyncio.shield(self.write_topic(topic, draft))
        except KafkaError as error:
            if error.code != ErrorCode.topic_already_exists:
                return error.with_traceback(None)
        return KafkaError(
            created, f"Topic {new.name} has been created, but its partitions have no leaders yet: try again."
        )

    async def write_topic(self, topic: TopicImage, draft: Draft) -> None:
        """Write the nodes of a new topic: its settings, then its assignment.

        Raises StoreError, and KafkaError(topic_already_exists).
        """
        resource = ConfigResource(TOPIC_CONFIG, topic.name)
        settings = znodes.encode_config(draft.configs.get(resource, {}))
        path = znodes.config_path(resource)
        assignment = znodes.encode_topic(
            topic.topic_id, {index: partition.replicas for index, partition in enumerate(topic.partitions)}
        )
        # Settings may be left from an earlier attempt.
        exists = await self._store.exists(path) is not None
        try:
            await self._store.multi(
                [
                    Set(path, settings) if exists else Create(path, settings),
                    Create(znodes.topic_path(topic.name), assignment),
                ]
            )
            self._failures.note_written()
        except NodeExistsError:
            is_deleting = await self._store.exists(znodes.deletion_path(topic.name)) is not None
            state = (
                "is being deleted, which waits for all brokers with its replicas" if is_deleting else "already exists"
            )
            raise KafkaError(ErrorCode.topic_already_exists, f"Topic '{topic.name}' {state}.") from None

    async def alter_configs(
        self, alterations: Sequence[tuple[ConfigResource, Alteration]], *, validate_only: bool = False
    ) -> Sequence[KafkaError | None]:
        """Change settings in ZooKeeper; all brokers apply them when notified.

        Return None or the error for each alteration.
        """
        results: list[KafkaError | None] = []
        for resource, alteration in alterations:
            try:
                with self._failures.answering():
                    await asyncio.shield(self._alter(resource, alteration, validate_only=validate_only))
            except KafkaError as error:
                results.append(error.with_traceback(None))
            else:
                results.append(None)
        return results

    async def _alter(self, resource: ConfigResource, alteration: Alteration, *, validate_only: bool) -> None:
        if resource.kind not in (TOPIC_CONFIG, BROKER_CONFIG):
            raise KafkaError(
                ErrorCode.invalid_request,
                f"A cluster with ZooKeeper has no settings for resources of type {resource.kind}.",
            )
        path = znodes.config_path(resource)
        while True:
            (node,) = await self._store.get_many([path])
            current = {} if node is None else decoded(path, znodes.decode_config, node.data)
            data = znodes.encode_config(alteration(current))
            if validate_only:
                return
            write: Operation = Create(path, data) if node is None else Set(path, data, node.stat.version)
            entity = path.removeprefix(f"{znodes.CONFIG}/")
            notification = Create(znodes.CONFIG_CHANGE, znodes.encode_config_change(entity), sequential=True)
            try:
                await self._store.multi([write, notification])
            except (BadVersionError, NodeExistsError):
                continue  # another broker was faster
            self._failures.note_written()
            return
