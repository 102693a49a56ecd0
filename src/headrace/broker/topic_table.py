"""The topics of the cluster as groups of the consumer protocol see them."""

import uuid
from collections.abc import Callable, Iterable

from headrace.cluster.image import MetadataImage
from headrace.cluster.topic_names import INTERNAL_TOPICS


class TopicTable:
    """Read off the metadata image; `version` is raised by whoever learns of a change to topics."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image
        self.version = 0

    def topic_names(self) -> Iterable[str]:
        """What an expression may stand for: as with Kafka, all but internal topics."""
        return (name for name in self._image().topics if name not in INTERNAL_TOPICS)

    def describe(self, topic: str) -> tuple[bytes, int] | None:
        """Id (16 bytes) and number of partitions; None where it does not exist."""
        found = self._image().topics.get(topic)
        return None if found is None else (found.topic_id.bytes, len(found.partitions))

    def name_of(self, topic_id: bytes) -> str | None:
        """None where it does not exist."""
        return self._image().names.get(uuid.UUID(bytes=topic_id))
