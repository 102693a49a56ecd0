from headrace.coordinator.groups.expressions import matching


class FakeTopics:
    """The topics of a cluster with their partition counts; ids are derived from the names."""

    def __init__(self, **partition_counts: int) -> None:
        self._counts = dict(partition_counts)
        self.version = 0
        self.is_busy = False
        """True while expressions are still being matched."""

    def set(self, topic: str, partition_count: int) -> None:
        """Add the topic, or partitions to it."""
        self._counts[topic] = partition_count
        self.version += 1

    def delete(self, topic: str) -> None:
        del self._counts[topic]
        self.version += 1

    def matching(self, regex: str) -> tuple[str, ...] | None:
        return None if self.is_busy else matching(regex, self._counts)

    def describe(self, topic: str) -> tuple[bytes, int] | None:
        return (topic_id(topic), self._counts[topic]) if topic in self._counts else None

    def name_of(self, topic_id: bytes) -> str | None:
        name = topic_id.rstrip(b"\0").decode()
        return name if name in self._counts else None


def topic_id(topic: str) -> bytes:
    return topic.encode().ljust(16, b"\0")
