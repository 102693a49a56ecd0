"""The broker's copy of the cluster's metadata, from which it serves all clients.

UpdateMetadata and changed settings replace the whole image, so a reader can keep using one consistent image.
"""

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from headrace.cluster.commands import UpdateMetadata
from headrace.cluster.image import TOPIC_CONFIG, ConfigResource, MetadataImage, TopicImage


class MetadataListener(Protocol):
    """Reacts to metadata changes. Its methods run on the event loop, after the image has changed."""

    def on_topics_changed(self, topics: Iterable[TopicImage]) -> None:
        """Handle topics that are new, or whose partitions or leaders have changed."""

    async def on_topics_deleted(self, topics: Sequence[TopicImage]) -> None:
        """Handle the deletion of topics."""

    async def on_configs_changed(self, resources: Sequence[ConfigResource]) -> None:
        """Handle changes to the dynamic settings of `resources`."""


class MetadataCache:
    """The current image, and the listeners to its changes."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.version = 0
        """Increases with every change to the topics."""
        self._listeners: list[MetadataListener] = []
        self._awaited: frozenset[str] = frozenset()
        self._complete = asyncio.Event()

    def attach(self, listener: MetadataListener) -> None:
        self._listeners.append(listener)

    @property
    def is_complete(self) -> bool:
        """True once the controller has sent the brokers and the topics passed to `await_topics`."""
        return self._complete.is_set()

    def await_topics(self, names: Iterable[str]) -> None:
        """Treat the cache as complete only once it has these topics: a new controller sends the brokers first."""
        self._awaited = frozenset(names)
        self._check_complete()

    def _check_complete(self) -> None:
        if self.image.brokers and self._awaited <= self.image.topics.keys():
            self._complete.set()

    async def wait_until_complete(self) -> None:
        """Wait until `is_complete` is True."""
        await self._complete.wait()

    async def apply(self, update: UpdateMetadata) -> None:
        """Apply the controller's update, and return when every listener has acted on it."""
        before = self.image
        gone = [before.topics[name] for name in update.deleted if name in before.topics]
        image = replace(before, controller_id=update.controller_id, controller_epoch=update.controller_epoch)
        image = image.with_brokers(update.brokers)
        if gone:
            image = image.without_topics(
                (topic.name for topic in gone), recreated=(topic.name for topic in update.topics)
            )
        if update.topics:
            image = image.with_topics(update.topics)
        self.image = image
        if not self.is_complete:
            self._check_complete()
        if not gone and not update.topics:
            return
        self.version += 1
        for listener in self._listeners:
            if gone:
                await listener.on_topics_deleted(gone)
            if update.topics:
                listener.on_topics_changed(update.topics)

    async def apply_configs(self, configs: Mapping[ConfigResource, Mapping[str, str]]) -> None:
        """Apply the settings of these resources; empty settings remove a resource."""
        self.note_configs(configs)
        for listener in self._listeners:
            await listener.on_configs_changed(tuple(configs))

    def note_configs(self, configs: Mapping[ConfigResource, Mapping[str, str]]) -> None:
        """Apply settings without calling the listeners: their topics are not visible yet."""
        if configs:
            self.image = self.image.with_configs(configs)

    def begin(self, cluster_id: str, configs: Mapping[ConfigResource, Mapping[str, str]]) -> None:
        """Start with the cluster's id and settings, without calling the listeners."""
        self.image = MetadataImage(cluster_id=cluster_id).with_configs(configs)

    # Queries about topics

    def topic_name(self, topic_id: uuid.UUID | None) -> str | None:
        return None if topic_id is None else self.image.names.get(topic_id)

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with that id (16 bytes); None if it does not exist."""
        return self.image.names.get(uuid.UUID(bytes=topic_id))

    def topic_id(self, topic: str) -> uuid.UUID | None:
        found = self.image.topics.get(topic)
        return None if found is None else found.topic_id

    def partition_count(self, topic: str) -> int | None:
        """Return the topic's number of partitions; None if it does not exist."""
        found = self.image.topics.get(topic)
        return None if found is None else len(found.partitions)

    def describe(self, topic: str) -> tuple[bytes, int] | None:
        """Return the topic's id (16 bytes) and number of partitions; None if it does not exist."""
        found = self.image.topics.get(topic)
        return None if found is None else (found.topic_id.bytes, len(found.partitions))

    def topic_config(self, topic: str) -> Mapping[str, str]:
        return self.image.config(TOPIC_CONFIG, topic)
