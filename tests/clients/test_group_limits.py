"""The initial rebalance delay and the maximum size of groups, with unmodified clients."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, KafkaError

from tests.clients.drivers.java_driver import java_command
from tests.clients.members import CLASSIC, CONSUMER, QUICK_GROUPS, Members
from tests.support.broker_process import BrokerProcess
from tests.support.ports import free_port
from tests.support.topics import create_topic
from tests.support.waiting import wait_for

DELAY_MS = 2000
"""The initial rebalance delay: long enough for a second client to join on a busy machine."""

JAVA_CONSUMER = "org.apache.kafka.tools.ConsumerPerformance"
"""Prints the exception of its consumer and exits; the console consumer only logs it."""

StartBroker = Callable[..., BrokerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartBroker]:
    """A function that starts a broker with the given settings."""
    brokers: list[BrokerProcess] = []

    def start_with(**settings: Any) -> BrokerProcess:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        http = {"headrace.http.listener": f"127.0.0.1:{free_port()}"}
        broker = BrokerProcess(tmp_path / "data", settings={**QUICK_GROUPS, **http, **named})
        brokers.append(broker)
        broker.start()
        return broker

    yield start_with
    for broker in brokers:
        broker.close()


@contextmanager
def members_of(broker: BrokerProcess, **settings: Any) -> Iterator[Members]:
    members = Members(broker, **settings)
    try:
        yield members
    finally:
        members.close()


def rebalances(broker: BrokerProcess, members: Members) -> list[dict[str, Any]]:
    """Return the rebalances in the broker's timeline of the group."""
    address = broker.settings["headrace.http.listener"]
    with urllib.request.urlopen(f"http://{address}/groups/timeline?group={members.group_id}", timeout=10) as answer:
        found: list[dict[str, Any]] = json.load(answer)["rebalances"]
    return found


def test_members_that_join_within_the_initial_delay_share_the_first_generation(start: StartBroker, topic: str) -> None:
    broker = start(group_initial_rebalance_delay_ms=DELAY_MS)
    create_topic(broker.bootstrap, topic, 4)
    assigned: list[int] = []
    with members_of(broker, **CLASSIC) as members:
        members.join(topic, lambda _, partitions: assigned.append(len(partitions)))
        wait_for(lambda: members.describe().members, "the first member joins")
        assert members.describe().state is ConsumerGroupState.PREPARING_REBALANCING
        members.join(topic, lambda _, partitions: assigned.append(len(partitions)))
        members.wait_for_share(2, 2)
        [only] = rebalances(broker, members)
    assert assigned == [2, 2], "one assignment per member, without a revocation"
    assert (only["generation"], only["outcome"], len(only["joined"])) == (1, "stable", 2)
    assert only["phases"][0]["phase"] == "join"
    assert only["phases"][0]["ms"] >= DELAY_MS


@pytest.mark.java
@pytest.mark.parametrize(
    "protocol", [pytest.param(CLASSIC, marks=pytest.mark.slow), CONSUMER], ids=["classic", "consumer"]
)
def test_a_full_group_refuses_members(start: StartBroker, topic: str, protocol: dict[str, Any]) -> None:
    broker = start(group_max_size=2, group_consumer_max_size=2)
    create_topic(broker.bootstrap, topic, 4)
    with members_of(broker, **protocol) as members:
        first = members.join(topic)
        members.join(topic)
        members.wait_for_share(2, 2)

        assert "GroupMaxSizeReachedException" in refused_java_consumer(broker, topic, members.group_id, protocol)
        refused = members.join(topic)
        members.wait_for_error(KafkaError.GROUP_MAX_SIZE_REACHED if protocol is CLASSIC else KafkaError._FATAL)
        assert any("maximum size" in error.str() for error in members.errors)

        command = ["groups", "describe", members.group_id, "--bootstrap", broker.bootstrap, "--json"]
        printed = subprocess.run([sys.executable, "-m", "headrace", *command], capture_output=True, check=True)
        [described] = json.loads(printed.stdout)
        assert [described["state"], len(described["members"])] == ["Stable", 2]
        assert members.share() == [2, 2, 0]

        members.leave(refused)
        members.leave(first)
        members.join(topic)
        members.wait_for_share(2, 2)


def refused_java_consumer(broker: BrokerProcess, topic: str, group: str, protocol: dict[str, Any]) -> str:
    """Return the output of a Java client that fails to join."""
    assignor = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    strategy = ("--command-property", f"partition.assignment.strategy={assignor}") if protocol is CLASSIC else ()
    ended = subprocess.run(
        java_command(
            JAVA_CONSUMER,
            *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", group, "--num-records", "1"),
            *("--command-property", f"group.protocol={protocol['group.protocol']}", *strategy),
        ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout
    return ended.stderr
