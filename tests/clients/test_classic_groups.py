"""Classic groups with unmodified clients: assignors, static members, timeouts, limits, crashes."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, KafkaError, TopicPartition

from tests.clients.drivers.java_driver import java_command
from tests.clients.drivers.line_process import LineProcess
from tests.clients.members import CLASSIC, CONSUMER, QUICK_GROUPS, ContinuousProducer, Members
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_tools import CONSOLE_CONSUMER
from tests.support.topics import create_topic
from tests.support.waiting import wait_for

ONE_MEMBER = """
import sys
from confluent_kafka import Consumer
bootstrap, group, topic = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "session.timeout.ms": 2000,
                     "heartbeat.interval.ms": 200, "partition.assignment.strategy": "cooperative-sticky"})
consumer.subscribe([topic])
while True:
    consumer.poll(0.1)
    print(len(consumer.assignment()), flush=True)
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings=QUICK_GROUPS) as broker:
        yield broker


@pytest.fixture
def members(broker: BrokerProcess) -> Iterator[Members]:
    members = Members(broker, **CLASSIC)
    yield members
    members.close()


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_every_assignor_shares_partitions(members: Members, broker: BrokerProcess, topic: str, strategy: str) -> None:
    create_topic(broker.bootstrap, topic, 6)
    settings = {"partition.assignment.strategy": strategy}
    members.join(topic, **settings)
    members.wait_for_share(6)
    second = members.join(topic, **settings)
    members.wait_for_share(3, 3)
    third = members.join(topic, **settings)
    members.wait_for_share(2, 2, 2)
    described = members.describe()
    assert (described.state, described.partition_assignor) == (ConsumerGroupState.STABLE, strategy)
    members.leave(second)
    members.leave(third)
    members.wait_for_share(6)


@pytest.mark.java
@pytest.mark.slow
def test_java_members_share_with_the_sticky_assignor(members: Members, broker: BrokerProcess, topic: str) -> None:
    create_topic(broker.bootstrap, topic, 6)
    strategy = "org.apache.kafka.clients.consumer.StickyAssignor"
    address = ("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", members.group_id)
    command = java_command(
        CONSOLE_CONSUMER,
        *address,
        *("--command-property", f"partition.assignment.strategy={strategy}"),
        *("--command-property", "heartbeat.interval.ms=300"),
    )
    running: list[LineProcess] = []
    try:
        for count in (1, 2):
            running.append(LineProcess(command))
            wait_for(lambda count=count: _shares(members, 6, count), f"{count} Java members")  # type: ignore[misc]
        assert members.describe().partition_assignor == "sticky"
    finally:
        for item in running:
            item.close()


def _shares(members: Members, partitions: int, count: int) -> bool:
    described = members.describe()
    shares = [len(member.assignment.topic_partitions) for member in described.members]
    return described.state is ConsumerGroupState.STABLE and len(shares) == count and sum(shares) == partitions


def test_a_static_member_restarts_without_a_rebalance_and_fences_its_predecessor(
    members: Members, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, 4)
    first = members.join(topic, **{"group.instance.id": "one"})
    other = members.join(topic, **{"group.instance.id": "two"})
    members.wait_for_share(2, 2)
    kept = {item.partition for item in other.assignment()}
    moved: list[Any] = []
    other.subscribe([topic], on_assign=lambda _, partitions: moved.extend(partitions))
    members.leave(first)
    back = members.join(topic, **{"group.instance.id": "one"})
    members.wait_for_share(2, 2)
    assert not moved, "the other member keeps its partitions"
    assert {item.partition for item in other.assignment()} == kept

    members.join(topic, **{"group.instance.id": "one"})
    members.wait_for_error(KafkaError._FATAL)
    with pytest.raises(Exception, match="Fatal error"):
        back.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)


def test_a_dead_member_is_removed_after_its_session_timeout(
    members: Members, broker: BrokerProcess, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, 4)
    command = [sys.executable, "-c", ONE_MEMBER, broker.bootstrap, members.group_id, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while process.stdout.readline() != b"4\n":
            pass
        members.join(topic)
        members.wait_for_share(2)
        process.kill()
    members.wait_for_share(4)


def test_a_member_that_does_not_poll_leaves_and_rejoins(members: Members, broker: BrokerProcess, topic: str) -> None:
    create_topic(broker.bootstrap, topic, 4)
    slow = members.join(topic, **{"session.timeout.ms": 1500, "max.poll.interval.ms": 1500})
    members.join(topic)
    members.wait_for_share(2, 2)
    members.consumers.remove(slow)
    members.wait_for_share(4)
    members.consumers.insert(0, slow)
    members.wait_for_error(KafkaError._MAX_POLL_EXCEEDED)
    members.wait_for_share(2, 2)


def test_members_without_a_common_protocol_get_an_error(members: Members, broker: BrokerProcess, topic: str) -> None:
    create_topic(broker.bootstrap, topic, 2)
    members.join(topic, **{"partition.assignment.strategy": "range"})
    members.wait_for_share(2)
    members.join(topic, **{"partition.assignment.strategy": "roundrobin"})
    members.wait_for_error(KafkaError.INCONSISTENT_GROUP_PROTOCOL)


@pytest.mark.parametrize(
    "protocol", [CLASSIC, pytest.param(CONSUMER, marks=pytest.mark.slow)], ids=["classic", "consumer"]
)
def test_a_group_survives_a_crash_of_its_coordinator_during_a_rebalance(
    broker: BrokerProcess, topic: str, protocol: dict[str, Any]
) -> None:
    members = Members(broker, **protocol)
    with ContinuousProducer(broker, topic, 6) as producer:
        members.join(topic)
        wait_for(lambda: members.share() == [6] and members.values, "the first member reads")
        members.join(topic)
        # The first member has not polled: it has not rejoined, or not yet revoked its partitions.
        wait_for(lambda: len(members.describe().members) == 2, "the second member joins")
        broker.sigkill()
        broker.start()
        members.wait_for_share(3, 3, timeout_s=40)
        producer.stop()
        wait_for(lambda: members.share() and set(members.values) >= set(producer.sent), "all records are read")
    members.close()


@pytest.mark.parametrize("protocol", [CLASSIC, CONSUMER], ids=["classic", "consumer"])
def test_a_hundred_members_join_at_once_and_no_other(
    broker: BrokerProcess, topic: str, protocol: dict[str, Any]
) -> None:
    create_topic(broker.bootstrap, topic, 100)
    members = Members(broker, **protocol)
    for _ in range(100):
        members.join(topic)
    wait_for(lambda: members.share() == [1] * 100, "every member has a partition", timeout_s=60)
    members.join(topic)
    members.wait_for_error(KafkaError.GROUP_MAX_SIZE_REACHED if protocol is CLASSIC else KafkaError._FATAL)
    members.close()
