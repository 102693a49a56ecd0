"""The same operations leave equal trees in ZooKeeper under Kafka's controller and under Headrace's."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from tests.adoption.kafka import ZooKeeper
from tests.cluster.trio import IDS, Trio, headrace, kafka, second_disk, tree
from tests.support.kafka_tools import CONFIGS
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(1200)]

_SETTINGS: Final = {
    # A failed disk is noticed when a checkpoint cannot be written.
    "replica.high.watermark.checkpoint.interval.ms": 500,
    "log.flush.offset.checkpoint.interval.ms": 500,
}

Act = Callable[[Trio, Path], None]


def create_and_grow(trio: Trio, _: Path) -> None:
    trio.create("a", (1, 2, 3), (2, 3, 1), (3, 1, 2), **{"retention.ms": "1000000"})
    trio.create("b", (1, 2), (2, 3))
    trio.grow("a", (1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 2, 3))


def delete(trio: Trio, _: Path) -> None:
    trio.delete("b")


def configure(trio: Trio, _: Path) -> None:
    def alter(*arguments: str) -> None:
        trio.run(CONFIGS, "--alter", *arguments)

    alter("--topic", "a", "--add-config", "cleanup.policy=[compact,delete],segment.bytes=1048576")
    alter("--topic", "a", "--delete-config", "segment.bytes,retention.ms")
    alter("--broker", "1", "--add-config", "log.cleaner.threads=2,log.retention.ms=5000")
    alter("--broker", "1", "--delete-config", "log.retention.ms")
    alter("--broker-defaults", "--add-config", "log.retention.ms=777777777")


def move(trio: Trio, directory: Path) -> None:
    moves = {("a", 0): (2, 3), ("a", 1): (3, 1, 2)}
    trio.reassign(directory, moves, "--execute", "--throttle", "100000000")
    trio.settle()
    trio.reassign(directory, moves, "--verify")


def add_replicas(trio: Trio, directory: Path) -> None:
    trio.create("few", (1,), (2,))
    trio.settle()
    trio.reassign(directory, {("few", 0): (1, 2, 3), ("few", 1): (3, 2)})


def cancel(trio: Trio, directory: Path) -> None:
    """Cancel a move that is too slow to have ended."""
    trio.create("stuck", (1, 2))
    trio.settle()
    producer = Producer({"bootstrap.servers": trio.bootstrap, "acks": "all"})
    for _ in range(600):
        producer.produce("stuck", b"v" * 10_000)
        producer.poll(0)
    assert producer.flush(60) == 0
    trio.reassign(directory, {("stuck", 0): (2, 3)}, "--execute", "--throttle", "1000")
    assert trio.read("/brokers/topics/stuck")["adding_replicas"] == {"0": [3]}
    trio.reassign(directory, {("stuck", 0): (2, 3)}, "--cancel")


def elect_all(trio: Trio, _: Path) -> None:
    trio.elect("preferred")


def move_by_node(trio: Trio, _: Path) -> None:
    partitions = [
        {"topic": "a", "partition": 2, "replicas": [1, 2]},
        {"topic": "absent", "partition": 0, "replicas": [1, 2]},
    ]
    trio.zookeeper.create("/admin/reassign_partitions", json.dumps({"version": 1, "partitions": partitions}).encode())


def elect_by_node(trio: Trio, _: Path) -> None:
    partitions = [{"topic": "a", "partition": index} for index in (0, 1)]
    election = json.dumps({"version": 1, "partitions": partitions}).encode()
    trio.zookeeper.create("/admin/preferred_replica_election", election)


def stop_and_start(trio: Trio, _: Path) -> None:
    trio.brokers[3].sigterm()
    trio.settle(3)
    trio.brokers[3].start()


def elect_a_leader_that_is_not_in_sync(trio: Trio, _: Path) -> None:
    trio.create("unclean", (2, 3))
    trio.settle()
    trio.brokers[2].sigkill()
    wait_for(lambda: trio.state("unclean", 0)["isr"] == [3], "an ISR of one")
    trio.brokers[3].sigkill()
    wait_for(lambda: trio.state("unclean", 0)["leader"] == -1, "no leader")
    trio.brokers[2].start()
    wait_for(lambda: trio.read("/brokers/ids/2"), "the first broker")
    trio.elect("unclean", "unclean", 0)
    trio.brokers[3].start()


def stop_the_controller(trio: Trio, _: Path) -> None:
    # The next controller is 2 or 3, as chance has it. So no act below stops either of them: the trees would differ.
    assert trio.controller() == 1
    trio.brokers[1].sigterm()
    wait_for(lambda: trio.controller() != 1, "another controller")
    trio.settle(1)
    trio.brokers[1].start()


def delete_while_a_broker_is_away(trio: Trio, _: Path) -> None:
    trio.create("c", (2, 1, 3), (3, 1, 2))
    trio.settle()
    trio.brokers[1].sigkill()
    trio.settle(1)
    trio.delete("c")
    trio.brokers[1].start()


def fail_a_disk(trio: Trio, _: Path) -> None:
    """Replace a log directory by a file; the topic is the only one, because others may be in other directories."""
    trio.create("damaged", (3, 1, 2))
    trio.settle()
    data = trio.brokers[3].data
    disk = next(path for path in (data, second_disk(data)) if (path / "damaged-0").exists())
    away = disk.with_name(disk.name + ".away")
    disk.rename(away)
    disk.write_text("a file")
    wait_for(lambda: trio.state("damaged", 0)["leader"] == 1, "another leader")
    wait_for(lambda: sorted(trio.state("damaged", 0)["isr"]) == [1, 2], "a smaller ISR")
    wait_for(lambda: not trio.zookeeper.get_children("/log_dir_event_notification"), "no notification")
    trio.brokers[3].sigkill()
    disk.unlink()
    away.rename(disk)
    trio.settle(3)
    trio.brokers[3].start()
    trio.settle()
    trio.elect("preferred", "damaged", 0)


ACTS: Final[tuple[Act, ...]] = (
    fail_a_disk,
    create_and_grow,
    delete,
    configure,
    move,
    add_replicas,
    cancel,
    elect_all,
    move_by_node,
    elect_by_node,
    stop_and_start,
    elect_all,
    elect_a_leader_that_is_not_in_sync,
    elect_all,
    stop_the_controller,
    elect_all,
    delete_while_a_broker_is_away,
    elect_all,
)


def play(kind: Callable[..., Any], directory: Path) -> dict[str, Any]:
    """Return the tree after every act in a cluster of this kind."""
    trees: dict[str, Any] = {}
    with ZooKeeper(directory / "zookeeper") as zookeeper:
        brokers = {
            broker_id: kind(directory, zookeeper.address, broker_id, two_disks=True, **_SETTINGS) for broker_id in IDS
        }
        trio = Trio(zookeeper.address, brokers)
        try:
            trio.start()
            for number, act in enumerate(ACTS):
                act(trio, directory)
                trio.settle()
                trees[f"{number} {act.__name__}"] = tree(trio.zookeeper)
                (directory / "trees.json").write_text(json.dumps(trees, indent=1))
        finally:
            trio.close()
    return trees


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The trees after every act, under Headrace's controller and under Kafka's."""
    base = tmp_path_factory.mktemp("trees")
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda kind: play(kind, base / kind.__name__), (headrace, kafka)))


@pytest.mark.parametrize("act", [f"{number} {act.__name__}" for number, act in enumerate(ACTS)])
def test_the_tree_is_the_same_as_under_kafkas_controller(act: str, trees: list[dict[str, Any]]) -> None:
    ours, theirs = (found[act] for found in trees)
    assert ours == theirs
