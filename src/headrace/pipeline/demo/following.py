"""Follow the cluster as any client can: read results and progress from topics, and positions from consumer groups."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeAlias

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

Take: TypeAlias = Callable[[bytes | None], None]
"""Called with the value of each record."""

_LOOK_FOR_TOPICS_S: Final = 0.5
_AT_ONCE: Final = 1000
_MOST: Final = 10_000
"""Maximum number of records per call, so that a long changelog does not block the view."""
_TIMEOUT_S: Final = 10.0

log = logging.getLogger(__name__)


class Changelogs:
    """Reads topics without joining a consumer group, from the beginning or from now on. Topics may be created later."""

    def __init__(self, bootstrap: str, topics: Mapping[str, Take], from_now: Iterable[str] = ()) -> None:
        self._take = topics
        self._missing = set(topics)
        self._looked_at = 0.0
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "headrace-demo", "enable.auto.commit": False}, logger=log
        )
        self._from_now = {topic: self._ends(topic) for topic in from_now}

    def _ends(self, topic: str) -> dict[int, int]:
        found = self._consumer.list_topics(timeout=_TIMEOUT_S).topics.get(topic)
        partitions = list(found.partitions) if found is not None and found.error is None else []
        return {
            partition: self._consumer.get_watermark_offsets(TopicPartition(topic, partition), _TIMEOUT_S)[1]
            for partition in partitions
        }

    def read(self) -> None:
        """Pass on new records, without waiting."""
        if self._missing and time.monotonic() - self._looked_at > _LOOK_FOR_TOPICS_S:
            self._look_for_topics()
        taken = 0
        while taken < _MOST and (messages := self._consumer.consume(num_messages=_AT_ONCE, timeout=0)):
            taken += len(messages)
            for message in messages:
                topic = message.topic()
                if message.error() is None and topic is not None:
                    self._take[topic](message.value())

    def _look_for_topics(self) -> None:
        self._looked_at = time.monotonic()
        try:
            known = self._consumer.list_topics(timeout=_TIMEOUT_S).topics
        except KafkaException as error:
            log.warning("The topics could not be listed; retrying: %s", error)
            return
        found = {topic for topic in self._missing if topic in known and known[topic].error is None}
        places = [
            TopicPartition(topic, partition, self._from_now.get(topic, {}).get(partition, 0))
            for topic in found
            for partition in known[topic].partitions
        ]
        if places:
            self._consumer.incremental_assign(places)
            self._missing -= found

    def close(self) -> None:
        self._consumer.close()


class Positions:
    """The offsets of a topic that the jobs' consumer groups have committed."""

    def __init__(self, bootstrap: str, topic: str, groups: Mapping[str, str]) -> None:
        """`groups` are group ids by job."""
        self._admin = AdminClient({"bootstrap.servers": bootstrap}, logger=log)
        self._topic = topic
        self._groups = groups
        self._waiting: dict[str, Future[Any]] = {}

    def read(self) -> dict[str, dict[int, int]]:
        """Return committed offsets by job and partition, if replies have arrived since the last call. Does not wait."""
        found: dict[str, dict[int, int]] = {}
        for job, group in self._groups.items():
            waiting = self._waiting.get(job)
            if waiting is not None and not waiting.done():
                continue
            if waiting is not None:
                found[job] = self._offsets(waiting)
            self._waiting[job] = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
        return found

    def _offsets(self, answer: "Future[Any]") -> dict[int, int]:
        try:
            places = answer.result().topic_partitions or []
        except KafkaException as error:
            log.debug("The committed offsets of a group could not be read: %s", error)
            return {}
        return {p.partition: p.offset for p in places if p.topic == self._topic and p.error is None and p.offset >= 0}
