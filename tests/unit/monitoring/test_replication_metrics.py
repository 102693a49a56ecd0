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


def test_followed_and_offline_partitions_do_not_count_as_leaders(replicas: ReplicaManager, tmp_path: Path) -> None:
    names = ("offlinereplicacount", "partitioncount", "leadercount")
    replicas.follow(PartitionState("t", T_ID, 0, 2, 1, (1, 2, 3), (1, 2, 3), is_new=False))
    assert [managed(replicas, name) for name in names] == [0, 3, 2]
    replicas.take_offline(tmp_path, "test")
    assert [managed(replicas, name) for name in names] == [3, 3, 0]


def test_partitions_with_missing_replicas_are_under_replicated_or_under_min_isr(replicas: ReplicaManager) -> None:
    names = ("underreplicatedpartitions", "underminisrpartitioncount", "atminisrpartitioncount")
    assert [managed(replicas, name) for name in names] == [2, 1, 1]
    named = values(replication.replica_manager(replicas))
    first, last = {"topic": "t", "partition": "1"}, {"topic": "t", "partition": "2"}
    assert named["kafka_cluster_partition_underreplicated"] == [(first, 1), (last, 1)]
    assert named["kafka_cluster_partition_underminisr"] == [(last, 1)]
    # A partition with a single replica is neither, even if min.insync.replicas is 2.
    replicas.become_leader(TopicPartition("single", 0), UUID(int=6), 0)
    assert [managed(replicas, name) for name in names] == [2, 1, 2]


def test_replicas_that_a_reassignment_is_adding_need_not_be_in_sync(replicas: ReplicaManager) -> None:
    names = ("underreplicatedpartitions", "underminisrpartitioncount", "atminisrpartitioncount")
    for isr, expected in (((1, 2), [1, 1, 1]), ((1, 2, 3), [1, 1, 0]), ((1,), [2, 2, 0])):
        moving = PartitionState("t", T_ID, 1, OWN, 0, (1, 2, 3, 4), isr, is_new=False, adding_replicas=(3, 4))
        replicas.lead(moving)
        assert [managed(replicas, name) for name in names] == expected
    replicas.lead(PartitionState("t", T_ID, 1, OWN, 0, (1, 2, 3, 4), (1, 2, 3), is_new=False))
    assert managed(replicas, "underreplicatedpartitions") == 2


def test_elections_are_counted_by_role() -> None:
    found = values(replication.cluster(MetadataImage(), OWN, Elections()))
    assert found["headrace_replica_elections"] == [({"role": "leader"}, 3), ({"role": "follower"}, 5)]


def test_only_the_controller_counts_partitions_without_a_leader() -> None:
    partitions = (PartitionImage(OWN, 0, (OWN,), (OWN,)), PartitionImage(-1, 1, (2,), (2,)))
    for controller, expected in ((OWN, [1, 1]), (2, [0, 0])):
        image = MetadataImage(controller_id=controller, topics={"t": TopicImage("t", T_ID, partitions)})
        found = values(replication.cluster(image, OWN, Elections()))
        names = ("activecontrollercount", "offlinepartitionscount")
        assert [found[f"kafka_controller_kafkacontroller_{name}"][0][1] for name in names] == expected, controller


def test_the_figures_of_fetchers_have_kafkas_names() -> None:
    found = values(replication.followers(Isr(), Fetchers()))
    names = ("isrshrinks", "isrexpands", "failedisrupdates")
    assert [found[MANAGER + name][0][1] for name in names] == [4, 2, 1]
    labels = {"clientId": "ReplicaFetcherThread-0-7", "topic": "t"}
    assert found["kafka_server_fetcherlagmetrics_consumerlag"] == [
        ({**labels, "partition": "0"}, 0),
        ({**labels, "partition": "1"}, 70),
    ]
    assert found["kafka_server_replicafetchermanager_maxlag"] == [({"clientId": "Replica"}, 70)]
    assert found["kafka_server_replicafetchermanager_failedpartitionscount"] == [({"clientId": "Replica"}, 1)]
    known = {"clientId": "ReplicaFetcherThread-0-7", "brokerHost": "h", "brokerPort": "9092"}
    unknown = {"clientId": "ReplicaFetcherThread-0-8", "brokerHost": "", "brokerPort": "0"}
    assert found["kafka_server_fetcherstats_bytes"] == [(known, 2000), (unknown, 0)]
    assert found["kafka_server_fetcherstats_requests"] == [(known, 10), (unknown, 1)]
