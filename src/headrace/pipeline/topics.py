"""Topics as the pipeline needs them: made, measured, and told how far a query has read."""

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

ACCESS_LOG: Final = "access-log"
"""The topic that the lines of an access log are shipped into."""
TOP_PAGES: Final = "top-pages"
"""The changelog of the most viewed pages, one key a rank."""

_TIMEOUT_S: Final = 30.0
_RETRY_S: Final = 0.05
_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]

log = logging.getLogger(__name__)


class Topics:
    """One cluster's topics. Every call waits for its answer and raises `KafkaException` where there is none."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap}, logger=log)

    def create(self, name: str, *, partitions: int, config: Mapping[str, str]) -> None:
        """Create the topic unless it exists; an existing one keeps its own partitions and settings."""
        new = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(config))
        try:
            self._admin.create_topics([new], operation_timeout=_TIMEOUT_S)[name].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def end_offsets(self, name: str) -> dict[int, int]:
        """The log end offset of every partition; empty for a topic that does not exist.

        One request to each leader, so the offsets of one broker's partitions are those of one moment.
        """
        return self._offsets(name, _LATEST)

    def record_count(self, name: str) -> int:
        """Records between the log start and the log end offsets; compaction and control records make it too high."""
        ends = self._offsets(name, _LATEST)
        starts = self._offsets(name, _EARLIEST)
        return sum(end - starts[partition] for partition, end in ends.items())

    def _offsets(self, name: str, spec: OffsetSpec) -> dict[int, int]:
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            topic = self._admin.list_topics(timeout=_TIMEOUT_S).topics.get(name)
            if topic is None or topic.error is not None:
                return {}
            wanted = {TopicPartition(name, partition): spec for partition in topic.partitions}
            answers = self._admin.list_offsets(wanted, request_timeout=_TIMEOUT_S)
            try:
                return {place.partition: answer.result().offset for place, answer in answers.items()}
            except KafkaException as error:
                # A new topic is known a moment before all of its partitions have leaders that answer.
                new = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE)
                if error.args[0].code() not in new or time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_S)

    def commit(self, group: str, name: str, offsets: Mapping[int, int]) -> None:
        """Commit the next offset to read of every partition for a group that has no members."""
        places = [TopicPartition(name, partition, offset) for partition, offset in sorted(offsets.items())]
        request = ConsumerGroupTopicPartitions(group, places)
        for answer in self._admin.alter_consumer_group_offsets([request]).values():
            refused: Iterable[TopicPartition] = (p for p in answer.result().topic_partitions if p.error is not None)
            for place in refused:
                raise KafkaException(place.error)
