"""Topics of a test's cluster."""

from collections.abc import Mapping

from headrace.pipeline.engine import topics


class Topics:
    """Creates topics and returns their end offsets."""

    def __init__(self, bootstrap: str) -> None:
        self._topics = topics.Topics({"bootstrap.servers": bootstrap})

    def create(self, name: str, *, partitions: int, config: Mapping[str, str]) -> None:
        self._topics.create(name, config, partitions=partitions)

    def end_offsets(self, name: str) -> dict[int, int]:
        return self._topics.end_offsets([name])[name]
