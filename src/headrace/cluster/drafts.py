"""Changes to many topics, decided one by one and written together.

Copying the immutable image takes time proportional to its size, so a request with many topics copies it only once.
"""

import uuid
from collections.abc import Mapping, Sequence

from headrace.cluster.image import TOPIC_CONFIG, ConfigResource, MetadataImage, TopicImage
from headrace.cluster.store import Operation


class Draft:
    """The topics of `base` with all changes, and the operations that write the changes.

    The controller adds the operations for the partitions' states.
    """

    def __init__(self, base: MetadataImage) -> None:
        self.base = base
        self.topics: dict[str, TopicImage] = dict(base.topics)
        self.names: dict[uuid.UUID, str] = dict(base.names)
        self.operations: list[Operation] = []
        self.configs: dict[ConfigResource, Mapping[str, str]] = {}
        """The settings of new topics."""
        self._unified: dict[str, str] | None = None

    def put(self, topic: TopicImage, operations: Sequence[Operation]) -> None:
        """Add a topic, or replace the one with its name."""
        self.topics[topic.name] = topic
        self.names[topic.topic_id] = topic.name
        self.operations.extend(operations)
        if self._unified is not None:
            self._unified[_unify(topic.name)] = topic.name

    def configure(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Record the overrides of a new topic. The operations passed to `put` write them."""
        if overrides:
            self.configs[ConfigResource(TOPIC_CONFIG, topic)] = overrides

    def remove(self, topic: TopicImage, operations: Sequence[Operation]) -> None:
        del self.topics[topic.name]
        del self.names[topic.topic_id]
        self.operations.extend(operations)
        self._unified = None

    def collision(self, name: str) -> str | None:
        """Return a topic, if any, whose name differs from `name` only in '.' and '_': their metrics would collide."""
        if "." not in name and "_" not in name:
            return None
        if self._unified is None:
            self._unified = {_unify(other): other for other in self.topics}
        other = self._unified.get(_unify(name))
        return None if other == name else other


def _unify(name: str) -> str:
    return name.replace(".", "_")
