"""The metrics of replication, from partitions with real logs."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from headrace.cluster.image import MetadataImage, PartitionImage, TopicImage
from headrace.metrics import Family, Samples
from headrace.monitoring import replication
from headrace.replication.following.fetch_figures import FetcherFigures
from headrace.replication.leading.isr_changes import IsrChange
from headrace.replication.leading.peers import Peers
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.types import PartitionState, TopicPartition

OWN = 1
T_ID = UUID(int=5)
MANAGER = "kafka_server_replicamanager_"


class NoController:
    """Never answers."""

    def submit(self, change: IsrChange, done: object) -> None:
        """Forget the change."""


class Elections:
    elected, followed = 3, 5


class Isr:
    shrinks, expands, failures = 4, 2, 1


class Fetchers:
    def __init__(self) -> None:
        self.failures = {TopicPartition("broken", 0)}

    def figures(self) -> Iterable[FetcherFigures]:
        lags = ((TopicPartition("t", 0), 0), (TopicPartition("t", 1), 70))
        return (
            FetcherFigures("ReplicaFetcherThread-0-7", ("h", 9092), 10, 2000, lags),
            FetcherFigures("ReplicaFetcherThread-0-8", None, 1, 0, ()),
        )


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[ReplicaManager]:
    """Two replicas are required; the partitions of `t` have three, of which 3, 2 and 1 are in sync."""
    replicas = ReplicaManager(LogDirs.open([tmp_path], broker_id=OWN), lambda _: LogConfig(min_insync_replicas=2))
    replicas.peers = Peers(OWN, lambda _: True, lambda: 100, lambda: 0, NoController())
    for index, isr in enumerate([(1, 2, 3), (1, 2), (1,)]):
        replicas.open(TopicPartition("t", index), T_ID, is_new=True)
        replicas.lead(PartitionState("t", T_ID, index, OWN, 0, (1, 2, 3), isr, is_new=True))
    yield replicas
    replicas.close()


def values(families: Iterable[Family]) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {family.name: [(dict(labels), value) for labels, value in samples(family)] for family in families}


def samples(family: Family) -> Samples:
    return family.samples() if callable(family.samples) else family.samples


def managed(replicas: ReplicaManager, name: str) -> float:
    ((_, value),) = values(replication.replica_manager(replicas))[MANAGER + name]
    return value


def test_followed_partitions_count_as_partitions_but_not_as_leaders(replicas: ReplicaManager) -> None:
    replicas.follow(PartitionState("t", T_ID, 0, 2, 1, (1, 2, 3), (1, 2, 3), is_new=False))
    assert (managed(replicas, "partitioncount"), managed(replicas, "leadercount")) == (3, 2)


def test_partitions_with_missing_replicas_are_under_replicated(replicas: ReplicaManager) -> None:
    assert managed(replicas, "underreplicatedpartitions") == 2
    named = values(replication.replica_manager(replicas))["kafka_cluster_partition_underreplicated"]
    assert named == [({"topic": "t", "partition": "1"}, 1), ({"topic": "t", "partition": "2"}, 1)]


def test_replicas_that_a_reassignment_is_adding_need_not_be_in_sync(replicas: ReplicaManager) -> None:
    names = ("underreplicatedpartitions", "underminisrpartitioncount", "atminisrpartitioncount")
    for isr, expected in (((1, 2), [1, 1, 1]), ((1, 2, 3), [1, 1, 0]), ((1,), [2, 2, 0])):
        moving = PartitionState("t", T_ID, 1, OWN, 0, (1, 2, 3, 4), isr, is_new=False, adding_replicas=(3, 4))
        replicas.lead(moving)
        assert [managed(replicas, name) for name in names] == expected
    replicas.lead(PartitionState("t", T_ID, 1, OWN, 0, (1, 2, 3, 4), (1, 2, 3), is_new=False))
    assert managed(replicas, "underreplicatedpartitions") == 2


def test_partitions_below_min_isr_differ_from_those_at_it(replicas: ReplicaManager) -> None:
    assert managed(replicas, "underminisrpartitioncount") == 1
    assert managed(replicas, "atminisrpartitioncount") == 1
    named = values(replication.replica_manager(replicas))["kafka_cluster_partition_underminisr"]
    assert named == [({"topic": "t", "partition": "2"}, 1)]


def test_a_partition_with_one_replica_is_never_under_min_isr(replicas: ReplicaManager) -> None:
    replicas.become_leader(TopicPartition("single", 0), UUID(int=6), 0)
    assert managed(replicas, "underminisrpartitioncount") == 1
    assert managed(replicas, "underreplicatedpartitions") == 2


def test_offline_partitions_are_counted(replicas: ReplicaManager, tmp_path: Path) -> None:
    replicas.take_offline(tmp_path, "test")
    names = ("offlinereplicacount", "partitioncount", "leadercount")
    assert [managed(replicas, name) for name in names] == [3, 3, 0]


@pytest.mark.parametrize(("controller", "expected"), [(OWN, (1, 1)), (2, (0, 0))])
def test_only_the_controller_counts_partitions_without_a_leader(controller: int, expected: tuple[int, int]) -> None:
    partitions = (PartitionImage(OWN, 0, (OWN,), (OWN,)), PartitionImage(-1, 1, (2,), (2,)))
    image = MetadataImage(controller_id=controller, topics={"t": TopicImage("t", T_ID, partitions)})
    found = values(replication.cluster(image, OWN, Elections()))
    active = found["kafka_controller_kafkacontroller_activecontrollercount"]
    offline = found["kafka_controller_kafkacontroller_offlinepartitionscount"]
    assert (active[0][1], offline[0][1]) == expected


def test_elections_are_counted_by_role() -> None:
    found = values(replication.cluster(MetadataImage(), OWN, Elections()))
    assert found["headrace_replica_elections"] == [({"role": "leader"}, 3), ({"role": "follower"}, 5)]


def test_changes_of_in_sync_replicas_are_counted() -> None:
    found = values(replication.followers(Isr(), Fetchers()))
    names = ("isrshrinks", "isrexpands", "failedisrupdates")
    assert [found[MANAGER + name][0][1] for name in names] == [4, 2, 1]


def test_the_lag_of_followed_partitions_has_kafkas_names() -> None:
    found = values(replication.followers(Isr(), Fetchers()))
    labels = {"clientId": "ReplicaFetcherThread-0-7", "topic": "t"}
    assert found["kafka_server_fetcherlagmetrics_consumerlag"] == [
        ({**labels, "partition": "0"}, 0),
        ({**labels, "partition": "1"}, 70),
    ]
    assert found["kafka_server_replicafetchermanager_maxlag"] == [({"clientId": "Replica"}, 70)]
    assert found["kafka_server_replicafetchermanager_failedpartitionscount"] == [({"clientId": "Replica"}, 1)]


def test_the_traffic_of_fetchers_names_the_leader() -> None:
    found = values(replication.followers(Isr(), Fetchers()))
    known = {"clientId": "ReplicaFetcherThread-0-7", "brokerHost": "h", "brokerPort": "9092"}
    unknown = {"clientId": "ReplicaFetcherThread-0-8", "brokerHost": "", "brokerPort": "0"}
    assert found["kafka_server_fetcherstats_bytes"] == [(known, 2000), (unknown, 0)]
    assert found["kafka_server_fetcherstats_requests"] == [(known, 10), (unknown, 1)]
