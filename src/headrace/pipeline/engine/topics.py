"""Topics of the cluster: create changelogs, look up topic ids and end offsets."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from headrace.pipeline.errors import PipelineError

_TIMEOUT_S: Final = 30.0
_RETRY_S: Final = 0.05
_UNKNOWN_S: Final = 5.0
_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""The zero id in Base64, which librdkafka returns for clusters without topic ids (before Kafka 2.8)."""
_TO_KAFKAS: Final = str.maketrans("+/", "-_", "=")

log = logging.getLogger(__name__)


class UnknownTopicError(PipelineError):
    """The brokers do not know a topic. They may not know it yet, if they have just started."""


class Topics:
    """The topics of a cluster. Calls wait for the reply, and raise `KafkaException`."""

    def __init__(self, client: Mapping[str, str]) -> None:
        """`client` is the configuration of a confluent-kafka client."""
        self._admin = AdminClient(dict(client), logger=log)

    def create(self, name: str, config: Mapping[str, str], *, partitions: int = -1) -> None:
        """Create the topic unless it exists. If `partitions` is -1, the broker chooses their number."""
        new = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(config))
        try:
            created = self._admin.create_topics([new], operation_timeout=_TIMEOUT_S, request_timeout=_TIMEOUT_S)
            created[name].result(2 * _TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def ids(self, names: Iterable[str]) -> dict[str, str]:
        """Return the existing topics' ids by name, as Kafka's tools print them; "" if the cluster has no ids."""
        names = list(names)
        if not names:
            return {}
        found: dict[str, str] = {}
        replies = self._admin.describe_topics(TopicCollection(names), request_timeout=_TIMEOUT_S)
        for name, reply in replies.items():
            try:
                # librdkafka uses the other alphabet of Base64.
                topic_id = str(reply.result().topic_id).translate(_TO_KAFKAS)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            else:
                found[name] = "" if topic_id == _NO_ID else topic_id
        return found

    def awaited_ids(self, names: Iterable[str]) -> dict[str, str]:
        """Return the same as `ids`, but wait 5 s for topics: a broker may not know all topics after its start."""
        names = list(names)
        deadline = time.monotonic() + _UNKNOWN_S
        while True:
            found = self.ids(names)
            if found.keys() >= set(names) or time.monotonic() > deadline:
                return found
            time.sleep(_RETRY_S)

    def end_offsets(self, names: Iterable[str], *, stable: bool = False) -> dict[str, dict[int, int]]:
        """Return the high watermarks of all partitions or, with `stable`, their last stable offsets.

        Waits up to 30 s for new topics and for elections. Raises UnknownTopicError for a topic that does not exist, and
        PipelineError for one that the user is not authorized to describe.
        """
        isolation = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
        return self._offsets(list(names), _LATEST, isolation)

    def start_offsets(self, names: Iterable[str]) -> dict[str, dict[int, int]]:
        """Return the log start offsets of all partitions. Waits and raises like `end_offsets`."""
        return self._offsets(list(names), _EARLIEST, IsolationLevel.READ_UNCOMMITTED)

    def _offsets(self, names: Sequence[str], spec: OffsetSpec, isolation: IsolationLevel) -> dict[str, dict[int, int]]:
        deadline = time.monotonic() + _TIMEOUT_S
        while names:
            try:
                return self._offsets_now(names, spec, isolation)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise PipelineError(
                        f"not authorized to read the offsets of at least one of these topics: {', '.join(names)}. "
                        "Grant the pipeline's user the operation Describe on them"
                    ) from error
                if not _passes(error.args[0]) or time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_S)
        return {}

    def _offsets_now(
        self, names: Sequence[str], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[str, dict[int, int]]:
        topics = self._admin.list_topics(timeout=_TIMEOUT_S).topics
        for name in names:
            error = topics[name].error if name in topics else None
            if name not in topics or (error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART):
                raise UnknownTopicError(f"topic {name} does not exist; create it with `headrace topics create {name}`")
            if error is not None:
                raise KafkaException(error)
        wanted = {TopicPartition(name, number): spec for name in names for number in topics[name].partitions}
        answers = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=_TIMEOUT_S)
        found: dict[str, dict[int, int]] = {name: {} for name in names}
        for place, answer in answers.items():
            found[place.topic][place.partition] = answer.result(2 * _TIMEOUT_S).offset
        return found


def _passes(error: KafkaError) -> bool:
    """Return True for a temporary error, such as a partition without a leader or a lost reply."""
    return error.retriable() or error.code() in (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    )
