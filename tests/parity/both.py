"""Send requests to both brokers and record where their answers differ."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest

from headrace.wire.apis import ApiKey, versions
from tests.parity.accepted import ACCEPTED
from tests.parity.normal import Normaliser, differences
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

Message = dict[str, Any]
Names = Callable[[], str]
"""A generator of names: the fixture `name`."""
UNKNOWN_ID: Final = uuid.UUID(int=0x4242_4242_4242_4242)


def every_version(
    api: ApiKey, *, since: int = 0, until: int = 1 << 15, only: tuple[int, ...] = ()
) -> pytest.MarkDecorator:
    """Parametrize the test with all versions of `api`, as `version`; or with those of `only` and the newest."""
    known = versions(api)
    assert known is not None
    lowest = 3 if api is ApiKey.PRODUCE else known.lowest  # older versions are listed for old clients, but refused
    every = range(max(lowest, since), min(known.highest, until) + 1)
    return pytest.mark.parametrize("version", [*only, known.highest] if only else every)


@dataclass(frozen=True, slots=True)
class Answers:
    """The decoded answers of both brokers; an error text if one closed the connection."""

    kafka: Any
    headrace: Any


class Side:
    """A broker, with its named connections and normalized identities."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._connections: dict[str, WireClient] = {}
        self.normal = Normaliser()
        self.topic_ids: dict[str, uuid.UUID] = {}

    def topic_id(self, topic: str) -> uuid.UUID:
        """Return the id of a topic made by `Both.create`, or else an unknown id."""
        return self.topic_ids.get(topic, UNKNOWN_ID)

    def ask(self, api: ApiKey, version: int, message: Message, connection: str) -> Any:
        self.send(api, version, message, connection)
        return self.receive(api, version, connection)

    def send(self, api: ApiKey, version: int, message: Message, connection: str) -> None:
        if connection not in self._connections:
            self._connections[connection] = WireClient(self._bootstrap, client_id=connection)
        self._connections[connection].send(api, version, message)

    def receive(self, api: ApiKey, version: int, connection: str) -> Any:
        try:
            return self._connections[connection].receive(api, version)
        except (ConnectionError, TimeoutError) as error:
            self._connections.pop(connection).close()
            return str(error)

    def learn(self, topic: str, topic_id: uuid.UUID) -> None:
        self.topic_ids[topic] = topic_id
        self.normal.topic_names[topic_id] = topic

    def close(self) -> None:
        """Close the connections; the next request opens a new one."""
        while self._connections:
            self._connections.popitem()[1].close()


Request = Message | Callable[[Side], Message]
"""A request, or a function that makes it from a broker's ids."""


class Both:
    """Apache Kafka and Headrace. A test with differences fails at its end and shows all of them."""

    def __init__(self, kafka: str, headrace: str) -> None:
        self.kafka = Side(kafka)
        self.headrace = Side(headrace)
        self.differences: list[str] = []

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.kafka, self.headrace

    def ask(self, api: ApiKey, version: int, message: Request, *, case: str = "", on: str = "parity") -> Answers:
        """Send `message` to both on the connection named `on`, and compare the answers to this `case`."""
        self.send(api, version, message, on=on)
        return self.receive(api, version, case=case, on=on)

    def send(self, api: ApiKey, version: int, message: Request, *, on: str = "parity") -> None:
        """Send without waiting for the answers."""
        for side in self.sides:
            side.send(api, version, message(side) if callable(message) else message, on)

    def receive(
        self,
        api: ApiKey,
        version: int,
        *,
        case: str = "",
        on: str = "parity",
        only: Callable[[Any], Any] = lambda answer: answer,
    ) -> Answers:
        """Receive the answers to `send` and compare the parts that `only` selects."""
        answers = Answers(*(side.receive(api, version, on) for side in self.sides))
        self.compare(api, f"{api.name} v{version} {case}", only(answers.kafka), only(answers.headrace))
        return answers

    def compare(self, api: ApiKey, case: str, kafka: Any, headrace: Any) -> None:
        """Record the differences of two answers, except the accepted ones."""
        for path, left, right in differences(self.kafka.normal(kafka), self.headrace.normal(headrace)):
            if not any(item.covers(api, path, left, right) for item in ACCEPTED):
                self.differences.append(f"{case}: {path or 'answer'}: Kafka sends {left!r}, Headrace {right!r}")

    def warm_up(self) -> None:
        """Wait for internal topics and producer ids, which Kafka creates at the first use."""
        first = {"transactional_id": None, "transaction_timeout": 1000}
        queries = (
            (ApiKey.FIND_COORDINATOR, 3, {"key": "warm-up"}),
            (ApiKey.FIND_COORDINATOR, 3, {"key": "warm-up", "key_type": 1}),
            (ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["warm-up"], "include_authorized_operations": False}),
            (ApiKey.INIT_PRODUCER_ID, 4, first),
        )
        for side in self.sides:
            for api, version, message in queries:

                def answered(side: Side = side, query: tuple[ApiKey, int, Message] = (api, version, message)) -> bool:
                    answer = side.ask(*query, "parity")
                    first_answer = answer.get("groups", [answer])[0]
                    return bool(first_answer["error_code"] == "none")

                wait_for(answered, f"a successful {api.name}")

    def take_differences(self) -> list[str]:
        """Return the differences since the last call."""
        found, self.differences = self.differences, []
        return found

    def create(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """Create a topic on both brokers, wait for its leaders, and return its name."""
        new = {
            "name": topic,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": name, "value": value} for name, value in (configs or {}).items()],
        }
        for side in self.sides:
            message = {"topics": [new], "timeout": 30_000, "validate_only": False}
            (created,) = side.ask(ApiKey.CREATE_TOPICS, 7, message, "parity")["topics"]
            assert created["error_code"] == "none", created
            side.learn(topic, created["topic_id"])
        self.wait_for_topics([topic])
        return topic

    def wait_for_topics(self, topics: Sequence[str]) -> None:
        """Wait until both brokers lead all partitions of `topics`, and learn their ids."""
        message = {
            "topics": [{"topic_id": None, "name": topic} for topic in topics],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }

        def led(side: Side) -> bool:
            described = side.ask(ApiKey.METADATA, 12, message, "parity")["topics"]
            for topic in described:
                if topic["error_code"] == "none":
                    side.learn(topic["name"], topic["topic_id"])
            return all(topic["error_code"] == "none" for topic in described) and self._can_read(side, described)

        for side in self.sides:
            wait_for(lambda side=side: led(side), f"leaders of {', '.join(topics)}")  # type: ignore[misc]

    @staticmethod
    def _can_read(side: Side, described: Sequence[Message]) -> bool:
        """Return True if the logs are readable: Kafka's metadata names a leader before the leader is ready."""
        partition = {"timestamp": -1}
        topics = [
            {
                "name": topic["name"],
                "partitions": [
                    {**partition, "partition_index": item["partition_index"]} for item in topic["partitions"]
                ],
            }
            for topic in described
        ]
        message = {"replica_id": -1, "isolation_level": 0, "topics": topics}
        listed = side.ask(ApiKey.LIST_OFFSETS, 6, message, "parity")["topics"]
        return all(item["error_code"] == "none" for topic in listed for item in topic["partitions"])

    def close(self) -> None:
        for side in self.sides:
            side.close()
