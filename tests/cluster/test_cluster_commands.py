"""`headrace cluster`, `reassign` and `elect` against three brokers of Apache Kafka 3.9 with ZooKeeper."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from typer.testing import CliRunner, Result

from headrace.cli.main import app
from tests.adoption.kafka import Java, WithZooKeeper, ZooKeeper
from tests.support.kafka_process import kafka_jars
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

RACKS = {1: "a", 2: "b", 3: "c"}
WITHIN_S = 60.0

Headrace = Callable[..., Result]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, WithZooKeeper]]:
    base = tmp_path_factory.mktemp("three")
    with ExitStack() as running:
        zookeeper = running.enter_context(ZooKeeper(base / "zookeeper"))
        found = {}
        for number, rack in RACKS.items():
            broker = WithZooKeeper(base / str(number), zookeeper.address)
            broker.settings |= {
                "broker.id": str(number),
                "broker.rack": rack,
                "auto.leader.rebalance.enable": "false",
                "zookeeper.session.timeout.ms": "6000",
                "log.segment.delete.delay.ms": "100",
            }
            found[number] = running.enter_context(broker)
        yield found


@pytest.fixture(scope="module")
def bootstrap(brokers: dict[int, WithZooKeeper]) -> str:
    return ",".join(broker.bootstrap for broker in brokers.values())


@pytest.fixture
def headrace(bootstrap: str) -> Headrace:
    """A function that runs `headrace`."""

    def run(*words: str, status: int | None = 0) -> Result:
        result = CliRunner().invoke(app, [*words, "--bootstrap", bootstrap], prog_name="headrace")
        assert status in (None, result.exit_code), f"{words}: {result.stdout}{result.stderr}{result.exception!r}"
        return result

    return run


@pytest.fixture
def topics(bootstrap: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """A function that creates a topic with the given replicas, with `records` of 100 KB in every partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    created: list[str] = []

    def create(assignment: list[list[int]], *, records: int = 10) -> str:
        name = f"{request.node.name[5:40]}-{len(created)}"
        new = NewTopic(name, len(assignment), replica_assignment=assignment)
        admin.create_topics([new])[name].result()
        created.append(name)
        producer = Producer({"bootstrap.servers": bootstrap, "topic.metadata.propagation.max.ms": 60_000})
        for partition in range(len(assignment)):
            for _ in range(records):
                producer.produce(name, bytes(100_000), partition=partition)
        assert producer.flush(60) == 0
        return name

    yield create
    for deleted in admin.delete_topics(created, operation_timeout=30).values():
        deleted.result()
    wait_for(
        lambda: not admin.list_topics(timeout=10).topics.keys() & created, "topics are deleted", timeout_s=WITHIN_S
    )


def shown(headrace: Headrace, *words: str, status: int | None = 0) -> Any:
    return json.loads(headrace(*words, "--json", status=status).stdout)


def replicas(headrace: Headrace, topic: str) -> list[list[int]]:
    # Brokers hear of the end of a move after the controller: until then, the partition seems to be under-replicated.
    partitions = shown(headrace, "cluster", status=None)["partitions"]
    return [one["replicas"] for one in partitions if one["topic"] == topic]


def settings_of(bootstrap: str, kind: ResourceType, name: str) -> dict[str, str | None]:
    resource = ConfigResource(kind, name)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_configs([resource])[resource].result(30)
    return {key: entry.value for key, entry in found.items() if "throttled" in key and entry.value}


def look(brokers: dict[int, WithZooKeeper]) -> Any:
    """Describe the cluster as JSON, through broker 1."""
    words = ["cluster", "--json", "--bootstrap", brokers[1].bootstrap]
    return json.loads(CliRunner().invoke(app, words).stdout)


def wait_until_healthy(brokers: dict[int, WithZooKeeper]) -> None:
    wait_for(lambda: look(brokers)["healthy"], "the cluster is healthy", timeout_s=WITHIN_S)


def problems(brokers: dict[int, WithZooKeeper]) -> dict[str, str]:
    return {
        f"{one['topic']}:{one['partition']}": one["problem"] for one in look(brokers)["partitions"] if one["problem"]
    }


def live(brokers: dict[int, WithZooKeeper]) -> set[int]:
    return {broker["id"] for broker in look(brokers)["brokers"] if broker["alive"]}


def test_brokers_and_controller_are_shown(headrace: Headrace, topics: Callable[..., str]) -> None:
    topic = topics([[1, 2], [2, 3]])

    found = shown(headrace, "cluster")

    assert found["healthy"]
    assert found["controller"] in RACKS
    assert {broker["id"]: broker["rack"] for broker in found["brokers"]} == RACKS
    assert found["brokers"][1]["disk"]["used"] > 2_000_000
    leaders = [one["leader"] for one in found["partitions"] if one["topic"] == topic]
    assert leaders == [1, 2]


def test_a_throttled_move_shows_its_progress_and_ends_without_throttles(
    headrace: Headrace, topics: Callable[..., str], bootstrap: str, tmp_path: Path
) -> None:
    topic = topics([[1], [1], [1]], records=80)
    plan, back = str(tmp_path / "plan.json"), str(tmp_path / "back.json")

    files = ("--output", plan, "--reverse", back)
    planned = shown(headrace, "reassign", "plan", "--topics", topic, "--brokers", "1,2,3", *files)
    assert len(planned["moves"]) == 2
    assert planned["bytes"] > 16_000_000

    headrace("reassign", "execute", plan, "--throttle", "100KB", "--yes")
    assert settings_of(bootstrap, ResourceType.BROKER, "1")["leader.replication.throttled.rate"] == "102400"
    moves = shown(headrace, "reassign", "status")
    assert len(moves) == 2
    assert sum(move["bytes_left"] for move in moves) > 0
    assert headrace("reassign", "verify", plan, "--quiet", status=3).stdout == ""

    # the same plan again changes only the throttle
    headrace("reassign", "execute", plan, "--throttle", "100MB", "--yes", "--watch", "--quiet")

    assert sorted(replicas(headrace, topic)) == [[1], [2], [3]]
    assert settings_of(bootstrap, ResourceType.BROKER, "1") == {}
    assert settings_of(bootstrap, ResourceType.TOPIC, topic) == {}
    headrace("reassign", "execute", back, "--yes", "--watch", "--quiet")
    assert replicas(headrace, topic) == [[1], [1], [1]]


def test_a_cancelled_move_leaves_the_replicas(
    headrace: Headrace, topics: Callable[..., str], bootstrap: str, tmp_path: Path
) -> None:
    topic = topics([[1, 2], [2, 1]], records=80)
    plan = str(tmp_path / "plan.json")
    headrace("reassign", "plan", "--topics", topic, "--brokers", "1,3", "--output", plan)
    headrace("reassign", "execute", plan, "--throttle", "10KB", "--yes")

    refused = headrace("reassign", "plan", "--topics", topic, status=1)
    cancelled = shown(headrace, "reassign", "cancel", "--plan", plan, "--yes")

    assert "is already being reassigned" in refused.stderr
    assert len(cancelled["cancelled"]) == 2
    # Kafka does not remember the order of the replicas
    assert [sorted(brokers) for brokers in replicas(headrace, topic)] == [[1, 2], [1, 2]]
    assert settings_of(bootstrap, ResourceType.BROKER, "3") == {}


def test_a_second_plan_must_be_additional(headrace: Headrace, topics: Callable[..., str], tmp_path: Path) -> None:
    slow, fast = topics([[1]], records=80), topics([[1]], records=0)
    first, second = str(tmp_path / "first.json"), str(tmp_path / "second.json")
    headrace("reassign", "plan", "--topics", slow, "--brokers", "2", "--output", first)
    headrace("reassign", "plan", "--topics", fast, "--brokers", "3", "--output", second)
    headrace("reassign", "execute", first, "--throttle", "10KB", "--yes")

    refused = headrace("reassign", "execute", second, "--yes", status=1)
    headrace("reassign", "execute", second, "--yes", "--additional")

    assert f"1 partition is already being reassigned, for example {slow}:0" in refused.stderr
    wait_for(lambda: replicas(headrace, fast) == [[3]], "the second plan is done", timeout_s=WITHIN_S)
    headrace("reassign", "cancel", "--yes")


def test_more_replicas_come_to_other_racks(headrace: Headrace, topics: Callable[..., str], tmp_path: Path) -> None:
    topic = topics([[1], [2], [3]])
    plan = str(tmp_path / "plan.json")

    headrace("reassign", "plan", "--topics", topic, "--replication-factor", "2", "--output", plan)
    headrace("reassign", "execute", plan, "--yes", "--watch", "--quiet")

    found = replicas(headrace, topic)
    assert [one[0] for one in found] == [1, 2, 3]
    assert sorted(broker for one in found for broker in one) == [1, 1, 2, 2, 3, 3]


def test_kafkas_tool_verifies_a_plan(
    headrace: Headrace, topics: Callable[..., str], bootstrap: str, tmp_path: Path
) -> None:
    topic = topics([[1, 2]], records=0)
    plan = str(tmp_path / "plan.json")
    headrace("reassign", "plan", "--topics", topic, "--brokers", "2,3", "--output", plan)

    def kafkas(action: str) -> str:
        java = Java(kafka_jars(), tmp_path / "tool.log")
        command = java.command(
            "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
            *("--bootstrap-server", bootstrap, "--reassignment-json-file", plan, action),
        )
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    assert "Successfully started partition reassignment" in kafkas("--execute")
    wait_for(lambda: "is completed" in kafkas("--verify"), "Kafka's tool finds the plan done", timeout_s=WITHIN_S)
    assert [outcome["state"] for outcome in shown(headrace, "reassign", "verify", plan)] == ["done"]


def test_a_broker_that_stops_and_returns(
    headrace: Headrace, topics: Callable[..., str], brokers: dict[int, WithZooKeeper]
) -> None:
    topic = topics([[3, 1], [1, 2]])
    alone = topics([[3]], records=1)
    brokers[3].sigterm()

    expected = {f"{topic}:0": "under-replicated", f"{alone}:0": "offline"}
    wait_for(lambda: problems(brokers) == expected, "broker 3 is missing", timeout_s=WITHIN_S)
    assert "broker 3 missing" in headrace("cluster", status=3).stdout
    assert "broker 3 has replicas, but is not alive" in headrace("reassign", "plan", status=1).stderr
    impossible = {one["topic"]: one for one in shown(headrace, "elect", "--execute", status=1)}
    assert impossible[topic]["election"] in ("impossible", "not needed")
    lost = shown(headrace, "elect", alone, "--unclean")
    assert (lost[0]["election"], lost[0]["reason"]) == ("impossible", "none of its brokers is alive: 3")

    brokers[3].start()
    wait_until_healthy(brokers)
    [preview] = shown(headrace, "elect", f"{topic}:0")
    assert (preview["leader_before"], preview["leader"], preview["election"]) == (1, 3, "possible")
    [elected] = shown(headrace, "elect", f"{topic}:0", "--execute")
    assert (elected["leader"], elected["election"]) == (3, "elected")


def test_an_unclean_election_returns_a_leader(
    headrace: Headrace, topics: Callable[..., str], brokers: dict[int, WithZooKeeper]
) -> None:
    topic = topics([[2, 3]], records=1)
    brokers[2].sigterm()
    brokers[3].sigterm()
    brokers[2].start()

    wait_for(lambda: live(brokers) == {1, 2}, "broker 2 is back, and broker 3 is gone", timeout_s=WITHIN_S)
    [preview] = shown(headrace, "elect", topic, "--unclean")
    assert (preview["leader_before"], preview["election"], preview["reason"]) == (
        None,
        "possible",
        "records may be lost",
    )
    [described] = shown(headrace, "topics", "describe", topic)
    assert [(partition["leader"], partition["latest"]) for partition in described["partitions"]] == [(None, None)]
    [elected] = shown(headrace, "elect", topic, "--unclean", "--execute", "--yes")
    assert (elected["leader"], elected["election"]) == (2, "elected")

    brokers[3].start()
    wait_until_healthy(brokers)
