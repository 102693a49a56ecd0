"""Access to a cluster through confluent-kafka. Failures are CommandErrors.

librdkafka's own log is dropped, because it repeats the errors.
"""

import logging
import socket
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Node,
    Producer,
    TopicCollection,
    TopicPartition,
    TopicPartitionInfo,
)
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic, OffsetSpec, TopicDescription

from headrace.cli.failures import CommandError, missing_partition, missing_topic, refused
from headrace.cli.greeting import why_not_kafka

T = TypeVar("T")

REQUEST_TIMEOUT_S = 10.0
_CONNECT_TIMEOUT_S = 3.0
_ALIVE_S = 3.0
"""A broker that takes longer to reply counts as lost."""
_KAFKA_PORT = 9092

_silent = logging.getLogger("headrace.cli.librdkafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


def client_config(
    bootstrap: str, on_error: Callable[[KafkaError], None] | None = None, **more: object
) -> dict[str, Any]:
    """Return the configuration of a librdkafka client; in the names of `more`, '_' stands for '.'."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "headrace-cli",
        "logger": _silent,
        **({"error_cb": on_error} if on_error else {}),
        # librdkafka's default of up to 10 s delays the reconnection to a restarted broker.
        "reconnect.backoff.max.ms": 1000,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def topic_exists(client: Consumer | Producer, topic: str) -> bool | None:
    """Return False if the topic does not exist, None if no broker replies within `_ALIVE_S`, otherwise True."""
    try:
        found = client.list_topics(topic, timeout=_ALIVE_S).topics.get(topic)
    except KafkaException:
        return None
    return found is None or found.error is None or found.error.name() != "UNKNOWN_TOPIC_OR_PART"


def leader_of(partition: TopicPartitionInfo) -> int | None:
    """Return the id of the broker that leads a partition; None if it has no leader."""
    leader: Node | None = partition.leader  # None without a leader, contrary to its type
    return None if leader is None or leader.id < 0 else leader.id


@dataclass(frozen=True, slots=True)
class Offsets:
    """The partition contains the offsets from `earliest` up to, but not including, `latest`."""

    earliest: int
    latest: int


class Cluster:
    """The cluster at `bootstrap`. The methods raise CommandError if a request fails."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient(client_config(bootstrap))

    @classmethod
    def connect(cls, bootstrap: str) -> Self:
        """Return the cluster if a broker replies at one of the addresses. Raises CommandError."""
        _check_that_a_broker_answers(bootstrap)
        return cls(bootstrap)

    def topic_names(self) -> list[str]:
        """Return the names of all topics, including internal ones, sorted."""
        return sorted(self._metadata("listing topics").topics)

    def brokers(self) -> dict[int, str]:
        """Return the host of every broker by its id."""
        found = self._metadata("listing brokers").brokers
        return {broker.id: str(broker.host) for broker in found.values()}

    def _metadata(self, doing: str) -> ClusterMetadata:
        try:
            return self.admin.list_topics(timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise refused(error.args[0], self.bootstrap, doing) from None

    def describe(self, names: Sequence[str]) -> list[TopicDescription]:
        """Describe topics, in the order of `names`. Raises CommandError if one does not exist."""
        if not names:
            return []
        futures = self.admin.describe_topics(TopicCollection(list(names)), request_timeout=REQUEST_TIMEOUT_S)
        descriptions = []
        for name in names:
            try:
                descriptions.append(self.answer(futures[name], f"describing topic '{name}'"))
            except UnknownTopicError:
                raise missing_topic(name, self.bootstrap, self.topic_names()) from None
        return descriptions

    def exists(self, topic: str) -> bool:
        """Return True if the topic exists. Does not create it."""
        futures = self.admin.describe_topics(TopicCollection([topic]), request_timeout=REQUEST_TIMEOUT_S)
        try:
            self.answer(futures[topic], f"looking up topic '{topic}'")
        except UnknownTopicError:
            return False
        return True

    def create(self, topic: NewTopic) -> None:
        """Create a topic and wait until it is in the brokers' metadata, at most REQUEST_TIMEOUT_S."""
        futures = self.admin.create_topics(
            [topic], operation_timeout=REQUEST_TIMEOUT_S, request_timeout=REQUEST_TIMEOUT_S
        )
        self.answer(futures[topic.topic], f"creating topic '{topic.topic}'")
        # Kafka's controller replies before the topic is in the metadata of the other brokers.
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while not self.exists(topic.topic) and time.monotonic() < deadline:
            time.sleep(0.02)

    def partitions(self, topic: str, wanted: int | None = None) -> list[int]:
        """Return the numbers of the topic's partitions, or only `wanted`. Raises CommandError if it does not exist."""
        numbers = sorted(partition.id for partition in self.describe([topic])[0].partitions)
        if wanted is None:
            return numbers
        if wanted not in numbers:
            raise missing_partition(topic, wanted, len(numbers) - 1)
        return [wanted]

    def offsets(self, topic: str, partitions: Collection[int]) -> dict[int, Offsets]:
        """Return the earliest and latest offsets of partitions."""
        earliest = self._list_offsets(topic, partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        latest = self._list_offsets(topic, partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return {partition: Offsets(earliest[partition], latest[partition]) for partition in partitions}

    def offsets_at(self, topic: str, partitions: Collection[int], timestamp_ms: int) -> dict[int, int]:
        """Return, for each partition, the offset of the first record with this timestamp or a later one, or -1."""
        spec = OffsetSpec.for_timestamp(timestamp_ms)
        return self._list_offsets(topic, partitions, spec)

    def answer(self, future: "Future[T]", doing: str) -> T:
        """Return the result of `future`. Raises UnknownTopicError or another CommandError."""
        try:
            return future.result()
        except KafkaException as error:
            cause = error.args[0]
            if cause.name() == "UNKNOWN_TOPIC_OR_PART":
                raise UnknownTopicError(f"{doing}: the topic does not exist") from None
            raise refused(cause, self.bootstrap, doing) from None

    def _list_offsets(self, topic: str, partitions: Collection[int], spec: OffsetSpec) -> dict[int, int]:
        if not partitions:
            return {}
        asked = {TopicPartition(topic, partition): spec for partition in partitions}
        futures = self.admin.list_offsets(asked, request_timeout=REQUEST_TIMEOUT_S)
        doing = f"listing the offsets of topic '{topic}'"
        return {partition.partition: self.answer(future, doing).offset for partition, future in futures.items()}


class UnknownTopicError(CommandError):
    """The topic does not exist. A separate class, so that callers can catch it."""


def _check_that_a_broker_answers(bootstrap: str) -> None:
    """Raise CommandError with the reasons if no broker replies; librdkafka would retry silently."""
    reasons = []
    hint = "Start a broker with `headrace start`, or name another one with --bootstrap or HEADRACE_BOOTSTRAP."
    for address in bootstrap.split(","):
        host, port = _address(address.strip())
        try:
            wrong = why_not_kafka(host, port, _CONNECT_TIMEOUT_S)
            if wrong is None:
                return
            reasons.append(f"{address} {wrong}")
            hint = "Name a broker's address with --bootstrap or HEADRACE_BOOTSTRAP."
        except ConnectionRefusedError:
            reasons.append(f"nothing is listening on {address}")
        except TimeoutError:
            reasons.append(f"the connection to {address} timed out")
        except socket.gaierror:
            reasons.append(f"unknown host '{host}'")
        except OSError as error:
            reasons.append(f"cannot reach {address}: {error.strerror or error}")
    raise CommandError("; ".join(reasons), hint)


def _address(text: str) -> tuple[str, int]:
    address = text.rpartition("://")[2]
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(_KAFKA_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        raise CommandError(
            f"'{text}' is not HOST:PORT with a port up to 65535",
            "For example --bootstrap 127.0.0.1:9092.",
            exit_code=2,
        )
    return host, int(port)
