"""Many changes to the metadata, made one after the other and written as one. Each costs as much as it changes.

The image is immutable, and making another one costs as much as it holds: with thousands of topics, only once a request.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from headrace.cluster.image import TOPIC_CONFIG, ConfigResource, MetadataImage, TopicImage
from headrace.cluster.store import Operation


class Change(NamedTuple):
    """What to write, and the metadata once it is written."""

    operations: Sequence[Operation]
    image: MetadataImage


class Draft:
    """The topics of `base` with the changes so far, and what writes those."""

    def __init__(self, base: MetadataImage) -> None:
        self.base = base
        self.topics: dict[str, TopicImage] = dict(base.topics)
        self.names: dict[uuid.UUID, str] = dict(base.names)
        self.operations: list[Operation] = []
        self._configs: dict[ConfigResource, Mapping[str, str]] = dict(base.configs)
        self._unified: dict[str, str] | None = None

    def put(self, topic: TopicImage, operations: Sequence[Operation]) -> None:
        """The topic is new, or takes the place of the one with its name."""
        self.topics[topic.name] = topic
        self.names[topic.topic_id] = topic.name
        self.operations.extend(operations)
        if self._unified is not None:
            self._unified[_unify(topic.name)] = topic.name

    def configure(self, topic: str, overrides: Mapping[str, str]) -> None:
        """The topic's own settings; the operations that write it have them."""
        if overrides:
            self._configs[ConfigResource(TOPIC_CONFIG, topic)] = overrides

    def remove(self, topic: TopicImage, operations: Sequence[Operation]) -> None:
        """The topic and its settings are gone."""
        del self.topics[topic.name]
        del self.names[topic.topic_id]
        self._configs.pop(ConfigResource(TOPIC_CONFIG, topic.name), None)
        self.operations.extend(operations)
        self._unified = None

    def collision(self, name: str) -> str | None:
        """A topic whose name differs from `name` only in '.' against '_', and so clashes with it in metrics."""
        if "." not in name and "_" not in name:
            return None
        if self._unified is None:
            self._unified = {_unify(other): other for other in self.topics}
        other = self._unified.get(_unify(name))
        return None if other == name else other

    def change(self) -> Change:
        """Everything so far."""
        image = replace(self.base, topics=self.topics, names=self.names, configs=self._configs)
        return Change(self.operations, image)


def _unify(name: str) -> str:
    return name.replace(".", "_")
