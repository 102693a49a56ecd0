"""Both brokers behind one `ask`, which notes where their answers differ."""

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
UNKNOWN_ID: Final = uuid.UUID(int=0x4242_4242_4242_4242)


def every_version(api: ApiKey, *, since: int = 0, until: int = 1 << 15) -> pytest.MarkDecorator:
    """Run the test in all versions of `api`, which it gets as `version`."""
    known = versions(api)
    assert known is not None
    lowest = 3 if api is ApiKey.PRODUCE else known.lowest  # older ones are named for old clients, and refused
    return pytest.mark.parametrize("version", range(max(lowest, since), min(known.highest, until) + 1))


@dataclass(frozen=True, slots=True)
class Answers:
    """What the brokers answered, as decoded; a string where one ended the connection instead."""

    kafka: Any
    headrace: Any


class Side:
    """One of the brokers: its connections, by name, and what its identities are called."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._connections: dict[str, WireClient] = {}
        self.normal = Normaliser()
        self.topic_ids: dict[str, uuid.UUID] = {}

    def topic_id(self, topic: str) -> uuid.UUID:
        """The id of a topic made by `Both.create`; one that no topic has for any other name."""
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
        for connection in self._connections.values():
            connection.close()


Asked = Message | Callable[[Side], Message]
"""A request, or what makes it for a broker where it has that broker's ids in it."""


class Both:
    """Apache Kafka and Headrace. `ask` notes differences; the test that used it fails at its end and shows them all."""

    def __init__(self, kafka: str, headrace: str) -> None:
        self.kafka = Side(kafka)
        self.headrace = Side(headrace)
        self.found: list[str] = []

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.kafka, self.headrace

    def ask(self, api: ApiKey, version: int, message: Asked, *, what: str = "", on: str = "parity") -> Answers:
        """Send `message` to both over the connection named `on`, and compare. `what` says what is special about it."""
        self.send(api, version, message, on=on)
        return self.receive(api, version, what=what, on=on)

    def send(self, api: ApiKey, version: int, message: Asked, *, on: str = "parity") -> None:
        """Send without waiting for the answers: `receive` does."""
        for side in self.sides:
            side.send(api, version, message(side) if callable(message) else message, on)

    def receive(
        self,
        api: ApiKey,
        version: int,
        *,
        what: str = "",
        on: str = "parity",
        only: Callable[[Any], Any] = lambda answer: answer,
    ) -> Answers:
        """Take the answers to `send` and compare what `only` takes from them."""
        answers = Answers(*(side.receive(api, version, on) for side in self.sides))
        self.compare(api, f"{api.name} v{version} {what}", only(answers.kafka), only(answers.headrace))
        return answers

    def compare(self, api: ApiKey, what: str, kafka: Any, headrace: Any) -> None:
        """Note where two answers differ, but for what is accepted."""
        for path, left, right in differences(self.kafka.normal(kafka), self.headrace.normal(headrace)):
            if not any(each.covers(api, path, left, right) for each in ACCEPTED):
                self.found.append(f"{what}: {path or 'answer'} is {left!r} from Kafka, {right!r} from Headrace")

    def warm_up(self) -> None:
        """Wait until both have their internal topics and producer ids, which Kafka creates at first use."""
        first = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
        questions = (
            (ApiKey.FIND_COORDINATOR, 3, {"key": "warm-up", "key_type": 0}),
            (ApiKey.FIND_COORDINATOR, 3, {"key": "warm-up", "key_type": 1}),
            (ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["warm-up"], "include_authorized_operations": False}),
            (ApiKey.INIT_PRODUCER_ID, 4, first),
        )
        for side in self.sides:
            for api, version, message in questions:

                def answered(side: Side = side, asked: tuple[ApiKey, int, Message] = (api, version, message)) -> bool:
                    answer = side.ask(*asked, "parity")
                    first_answer = answer.get("groups", [answer])[0]
                    return bool(first_answer["error_code"] == "none")

                wait_for(answered, f"a good answer to {api.name}")

    def take_differences(self) -> list[str]:
        """What was found since the last call."""
        found, self.found = self.found, []
        return found

    def create(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """Make a topic on both and return its name once both lead it."""
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
        """Return once both brokers lead every partition of `topics`, and know their ids here."""
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
        """Whether the logs are there: Kafka says who leads a partition a moment before the leader knows."""
        partition = {"current_leader_epoch": -1, "timestamp": -1}
        topics = [
            {
                "name": topic["name"],
                "partitions": [
                    {**partition, "partition_index": each["partition_index"]} for each in topic["partitions"]
                ],
            }
            for topic in described
        ]
        message = {"replica_id": -1, "isolation_level": 0, "topics": topics}
        listed = side.ask(ApiKey.LIST_OFFSETS, 6, message, "parity")["topics"]
        return all(each["error_code"] == "none" for topic in listed for each in topic["partitions"])

    def close(self) -> None:
        for side in self.sides:
            side.close()
