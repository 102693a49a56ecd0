"""Groups of the consumer protocol (KIP-848) with librdkafka and the Java client."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.clients.drivers.java_driver import run_tool
from tests.clients.members import CONSUMER, QUICK_GROUPS, Members
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_tools import CONSOLE_CONSUMER, CONSUMER_GROUPS
from tests.support.topics import create_topic


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings=QUICK_GROUPS)
    broker.start()
    yield broker
    broker.close()


@pytest.fixture
def members(broker: BrokerProcess) -> Iterator[Members]:
    members = Members(broker, **CONSUMER)
    yield members
    members.close()


@pytest.fixture
def fill(broker: BrokerProcess) -> Callable[[str, int], None]:
    """A function that creates a topic of four partitions with numbered records."""

    def create_and_fill(topic: str, count: int) -> None:
        create_topic(broker.bootstrap, topic, 4)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(count):
            producer.produce(topic, str(number).encode(), partition=number % 4)
        producer.flush()

    return create_and_fill


def test_members_share_partitions_and_take_over_those_of_leaving_members(
    members: Members, broker: BrokerProcess, topic: str, fill: Callable[[str, int], None]
) -> None:
    fill(topic, 40)
    members.join(topic)
    members.wait_for_share(4)
    second = members.join(topic)
    members.wait_for_share(2, 2)

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    described = admin.describe_consumer_groups([members.group_id])[members.group_id].result()
    assert (described.state, described.type, described.partition_assignor) == (
        ConsumerGroupState.STABLE,
        ConsumerGroupType.CONSUMER,
        "uniform",
    )
    assert [len(member.assignment.topic_partitions) for member in described.members] == [2, 2]

    members.leave(second)
    members.wait_for_share(4)
    members.wait_for_values(*map(str, range(40)))


def test_a_group_survives_the_kill_of_its_coordinator(
    members: Members, broker: BrokerProcess, topic: str, fill: Callable[[str, int], None]
) -> None:
    fill(topic, 20)
    consumer = members.join(topic)
    members.wait_for_values(*map(str, range(20)))
    consumer.commit(asynchronous=False)
    broker.sigkill()
    broker.start()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"after", partition=0)
    producer.flush()
    members.wait_for_values("after")
    assert members.values.count(b"0") == 1, "committed offsets survive"
    committed = consumer.committed([TopicPartition(topic, 1)])
    assert committed[0].offset == 5


def test_a_static_member_rejoins_without_a_rebalance(
    members: Members, topic: str, fill: Callable[[str, int], None]
) -> None:
    fill(topic, 0)
    first = members.join(topic, **{"group.instance.id": "one"})
    other = members.join(topic, **{"group.instance.id": "two"})
    members.wait_for_share(2, 2)
    kept = {item.partition for item in first.assignment()}
    members.leave(first)
    back = members.join(topic, **{"group.instance.id": "one"})
    members.wait_for_share(2, 2)
    assert {item.partition for item in back.assignment()} == kept
    assert not kept & {item.partition for item in other.assignment()}


def test_an_expression_matches_topics_created_later(
    members: Members, topic: str, fill: Callable[[str, int], None]
) -> None:
    fill(f"{topic}-1", 4)
    members.join(f"^{topic}-.*")
    members.wait_for_share(4)
    fill(f"{topic}-2", 4)
    members.wait_for_share(8)
    members.wait_for_count(8)


def test_the_java_client_and_tools_work(broker: BrokerProcess, topic: str, fill: Callable[[str, int], None]) -> None:
    fill(topic, 12)
    read = run_tool(
        CONSOLE_CONSUMER,
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", f"{topic}-java", "--from-beginning"),
        *("--command-property", "group.protocol=consumer", "--max-messages", "12", "--timeout-ms", "20000"),
    )
    assert sorted(read.split()) == sorted(map(str, range(12)))
    described = run_tool(
        CONSUMER_GROUPS, "--bootstrap-server", broker.bootstrap, "--describe", "--group", f"{topic}-java", "--state"
    )
    assert "Empty" in described
    listed = run_tool(CONSUMER_GROUPS, "--bootstrap-server", broker.bootstrap, "--list", "--type")
    assert any(line.split()[:2] == [f"{topic}-java", "Consumer"] for line in listed.splitlines())
