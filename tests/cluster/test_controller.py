"""Three Headrace brokers on ZooKeeper, one of which is the controller: Kafka's tools, kills, and Kafka's own tree."""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import Message, Producer

from tests.adoption.kafka import ZooKeeper
from tests.cluster.trio import IDS, Trio, headrace
from tests.support.topics import read_values
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.java, pytest.mark.timeout(580)]


class Load:
    """Idempotent records with acks=all to all partitions of a topic; `check` reads them back."""

    def __init__(self, trio: Trio, topic: str, partitions: int) -> None:
        self._trio = trio
        self._topic = topic
        self._partitions = partitions
        self._producer = Producer({"bootstrap.servers": trio.bootstrap, "acks": "all", "enable.idempotence": True})
        self._sent = 0
        self._acknowledged: set[bytes] = set()
        self._errors: list[ClientError] = []

    def send(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for _ in range(20):
                value = b"%d" % self._sent
                self._producer.produce(
                    self._topic, value, partition=self._sent % self._partitions, on_delivery=self._delivered
                )
                self._sent += 1
            self._producer.poll(0.01)

    def _delivered(self, error: ClientError | None, message: Message) -> None:
        value = message.value()
        if error is not None:
            self._errors.append(error)
        elif value is not None:
            self._acknowledged.add(value)

    def check(self) -> None:
        """Every record was acknowledged, and is in the log once."""
        assert self._producer.flush(60) == 0
        assert not self._errors
        assert len(self._acknowledged) == self._sent
        found = read_values(self._trio.bootstrap, self._topic)
        assert len(found) == self._sent
        assert set(found) == self._acknowledged


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as zookeeper:
        yield zookeeper.address


@pytest.fixture
def trio(running: Trio) -> Trio:
    """All three brokers, also after a test that has failed."""
    for broker in running.brokers.values():
        if not broker.running:
            broker.start()
    running.settle()
    return running


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[Trio]:
    base = tmp_path_factory.mktemp("trio")
    trio = Trio(zookeeper, {broker_id: headrace(base, zookeeper, broker_id) for broker_id in IDS})
    try:
        trio.start()
        yield trio
    finally:
        trio.close()


def test_nothing_is_lost_when_the_controller_is_killed(trio: Trio) -> None:
    trio.create("killed", (1, 2, 3), (2, 3, 1), (3, 1, 2))
    load = Load(trio, "killed", 3)
    load.send(1)
    controller = trio.controller()
    trio.brokers[controller].sigkill()
    load.send(1)
    wait_for(lambda: trio.read("/controller"), "another controller")
    trio.settle(controller)
    load.send(1)
    trio.brokers[controller].start()
    trio.settle()
    load.check()


def test_a_clean_stop_of_the_controller_moves_its_leaders_first(trio: Trio) -> None:
    trio.create("stopped", (1, 2, 3), (2, 3, 1), (3, 1, 2))
    controller = trio.controller()
    assert trio.brokers[controller].sigterm() == 0
    led = [trio.state("stopped", index)["leader"] for index in range(3)]
    assert controller not in led
    assert "Controlled shutdown is complete" in trio.brokers[controller].log()
    trio.settle(controller)
    trio.brokers[controller].start()
    trio.settle()


@pytest.mark.slow
def test_a_controller_that_was_paused_beyond_its_session_is_deposed(trio: Trio) -> None:
    trio.create("paused", (1, 2, 3), (2, 3, 1), (3, 1, 2))
    controller = trio.controller()
    trio.brokers[controller].pause()
    wait_for(lambda: trio.controller() != controller, "another controller")
    trio.settle(controller)
    before = [trio.state("paused", index) for index in range(3)]
    trio.brokers[controller].resume()
    trio.settle()
    assert trio.controller() != controller
    after = [trio.state("paused", index) for index in range(3)]
    assert [(state["leader"], state["leader_epoch"]) for state in after] == [
        (state["leader"], state["leader_epoch"]) for state in before
    ]
