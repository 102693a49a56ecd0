"""Groups whose members change one by one from the classic to the consumer protocol and back, under load."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType

from tests.clients.drivers.java_driver import java_command
from tests.clients.drivers.line_process import LineProcess
from tests.clients.members import CLASSIC, CONSUMER, QUICK_GROUPS, ContinuousProducer, Members
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_tools import CONSOLE_CONSUMER
from tests.support.topics import create_topic
from tests.support.waiting import wait_for

PARTITIONS = 6


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings=QUICK_GROUPS) as broker:
        yield broker


def is_shared(members: Members) -> bool:
    share = members.share()
    return sum(share) == PARTITIONS and min(share) > 0


def replace(members: Members, old: Consumer, topic: str, settings: Mapping[str, Any]) -> Consumer:
    """Start a new member before closing the old one, as in a rolling restart."""
    new = members.join(topic, **settings)
    wait_for(lambda: is_shared(members), "the new member has partitions")
    members.leave(old)
    wait_for(lambda: is_shared(members), "the others take over the old member's partitions")
    return new


@pytest.mark.parametrize("strategy", ["cooperative-sticky", pytest.param("range", marks=pytest.mark.slow)])
def test_members_change_their_protocol_one_by_one_without_losing_records(
    broker: BrokerProcess, topic: str, strategy: str
) -> None:
    members = Members(broker)
    classic = {**CLASSIC, "partition.assignment.strategy": strategy}
    with ContinuousProducer(broker, topic, PARTITIONS) as producer:
        olds = [members.join(topic, **classic) for _ in range(2)]
        wait_for(lambda: is_shared(members), "the classic members share the topic")
        assert members.describe().type is ConsumerGroupType.CLASSIC

        news = [replace(members, old, topic, CONSUMER) for old in olds]
        described = members.describe()
        assert (described.type, described.state) == (ConsumerGroupType.CONSUMER, ConsumerGroupState.STABLE)

        for new in news:
            replace(members, new, topic, classic)
        wait_for(lambda: is_shared(members) and members.describe().type is ConsumerGroupType.CLASSIC, "the downgrade")
        producer.stop()
        wait_for(lambda: is_shared(members) and set(members.values) >= set(producer.sent), "all records are read")
    members.close()
    assert len(members.values) - len(set(members.values)) < PARTITIONS, "only records in flight are read twice"


def java_consumer(broker: BrokerProcess, topic: str, group: str, protocol: str) -> LineProcess:
    settings = {
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": "200",
        "metadata.max.age.ms": "1000",
    }
    if protocol == "classic":
        settings |= {"session.timeout.ms": "6000", "heartbeat.interval.ms": "300"}
    options = [option for name, value in settings.items() for option in ("--command-property", f"{name}={value}")]
    address = ("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", group)
    return LineProcess(java_command(CONSOLE_CONSUMER, *address, *options))


@pytest.mark.java
@pytest.mark.slow
def test_java_consumers_change_their_protocol(broker: BrokerProcess, topic: str) -> None:
    """Run one consumer of either protocol, then only the newer, then only the older."""
    create_topic(broker.bootstrap, topic, PARTITIONS)
    observer = Members(broker)

    def members_are(kind: ConsumerGroupType, count: int) -> bool:
        described = observer.describe()
        has_all = sum(len(member.assignment.topic_partitions) for member in described.members) == PARTITIONS
        is_stable = described.state is ConsumerGroupState.STABLE
        return described.type is kind and len(described.members) == count and is_stable and has_all

    def wait_for_members(kind: ConsumerGroupType, count: int) -> None:
        wait_for(lambda: members_are(kind, count), f"{count} members, {kind}", timeout_s=40)

    running = []
    try:
        running.append(java_consumer(broker, topic, observer.group_id, "classic"))
        wait_for_members(ConsumerGroupType.CLASSIC, 1)
        running.append(java_consumer(broker, topic, observer.group_id, "consumer"))
        wait_for_members(ConsumerGroupType.CONSUMER, 2)
        running[0].terminate()
        wait_for_members(ConsumerGroupType.CONSUMER, 1)
        running.append(java_consumer(broker, topic, observer.group_id, "classic"))
        wait_for_members(ConsumerGroupType.CONSUMER, 2)
        running[1].terminate()
        wait_for_members(ConsumerGroupType.CLASSIC, 1)
    finally:
        for item in running:
            item.close()
