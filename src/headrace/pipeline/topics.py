"""Topics of the pipeline: create them, count their records, commit offsets."""

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

ACCESS_LOG: Final = "access-log"
"""The topic with the lines of an access log."""
TOP_PAGES: Final = "top-pages"
"""The changelog of the most viewed pages; keys are ranks."""

_TIMEOUT_S: Final = 30.0
_RETRY_S: Final = 0.05
_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]

log = logging.getLogger(__name__)


class Topics:
    """The topics of a cluster. Every call waits for the reply. Raises `KafkaException`."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap}, logger=log)

    def create(self, name: str, *, partitions: int, config: Mapping[str, str]) -> None:
        """Create the topic unless it exists; an existing one keeps its partitions and settings."""
        new = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(config))
        try:
            self._admin.create_topics([new], operation_timeout=_TIMEOUT_S)[name].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def end_offsets(self, name: str) -> dict[int, int]:
        """Return the log end offsets of all partitions; empty if the topic does not exist.

        One request per leader, so the offsets of one broker's partitions belong to one moment.
        """
        return self._offsets(name, _LATEST)

    def record_count(self, name: str) -> int:
        """Return the number of offsets in the log, an upper limit with compaction or control records."""
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
                # A new topic is known shortly before all of its partitions have leaders.
                new = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE)
                if error.args[0].code() not in new or time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_S)

    def commit(self, group: str, name: str, offsets: Mapping[int, int]) -> None:
        """Commit the next offsets to read for a group without members."""
        places = [TopicPartition(name, partition, offset) for partition, offset in sorted(offsets.items())]
        request = ConsumerGroupTopicPartitions(group, places)
        for answer in self._admin.alter_consumer_group_offsets([request]).values():
            refused: Iterable[TopicPartition] = (p for p in answer.result().topic_partitions if p.error is not None)
            for place in refused:
                raise KafkaException(place.error)
