"""Adopting partitions found on disk, with and without Kafka's metadata."""

import uuid

import pytest

from headrace.adoption.kafka_cluster import KafkaCluster, KafkaPartition
from headrace.adoption.plan import Adoption, FoundPartition, adopt, adopted
from headrace.cluster.image import BROKER_CONFIG, TOPIC_CONFIG, ConfigResource
from headrace.config import BrokerConfig
from headrace.errors import KafkaError

CONFIG = BrokerConfig({"node.id": "7"})
ID, OTHER_ID, DIRECTORY = uuid.UUID(int=1001), uuid.UUID(int=1002), uuid.UUID(int=1003)


def cluster_of(*partitions: KafkaPartition, name: str = "t") -> KafkaCluster:
    cluster = KafkaCluster("somewhere")
    cluster.topics[name] = ID
    cluster.partitions[ID] = dict(enumerate(partitions))
    return cluster


def found(*partitions: int, epoch: int = -1, topic_id: uuid.UUID | None = ID, name: str = "t") -> list[FoundPartition]:
    return [FoundPartition(name, index, topic_id, epoch) for index in partitions]


def adopt_cluster(cluster: KafkaCluster, *there: FoundPartition, config: BrokerConfig = CONFIG) -> Adoption:
    return adopt(there, cluster, config, {DIRECTORY})


HERE = KafkaPartition((7,), 4)


class TestFromDirectories:
    def test_topic_ids_and_leader_epochs_come_from_the_directories(self) -> None:
        there = [*found(0), *found(1, epoch=7), *found(0, topic_id=None, name="old")]
        adoption = adopt([*there, FoundPartition("__cluster_metadata", 0, None, 0)], None, CONFIG, ())
        assert [topic.name for topic in adoption.topics] == ["t", "old"]
        assert adoption.topics[0].topic_id == ID
        assert [partition.leader_epoch for partition in adoption.topics[0].partitions] == [0, 7]
        assert adoption.topics[0].partitions[0].replicas == (7,)

    def test_nothing_expires_if_the_settings_are_unknown(self) -> None:
        compacted = FoundPartition("c", 0, None, 0, is_compacted=True)
        adoption = adopt([*found(0), compacted, *found(0, topic_id=None, name="__consumer_offsets")], None, CONFIG, ())
        of = {resource.name: values for resource, values in adoption.configs.items()}
        assert of["t"] == {"retention.ms": "-1", "retention.bytes": "-1"}
        assert of["c"] == {"cleanup.policy": "compact"}
        assert of["__consumer_offsets"]["cleanup.policy"] == "compact"
        assert any("nothing expires" in line for line in adoption.left_out)
        assert any("a topic ends with the last partition found" in line for line in adoption.left_out)

    def test_a_missing_partition_is_refused_unless_allowed(self) -> None:
        with pytest.raises(
            KafkaError, match="the directories of t-0, t-1 are missing, but a later partition is present"
        ):
            adopt(found(2), None, CONFIG, ())
        config = BrokerConfig({"node.id": "7", "headrace.adopt.partial": "true"})
        assert len(adopt(found(2), None, config, ()).topics[0].partitions) == 3

    def test_conflicting_topic_ids_are_refused(self) -> None:
        with pytest.raises(KafkaError, match="directories of topic t have different topic ids"):
            adopt([*found(0), *found(1, topic_id=OTHER_ID)], None, CONFIG, ())
        with pytest.raises(KafkaError, match="topics t and u have the same topic id"):
            adopt([*found(0), *found(0, name="u")], None, CONFIG, ())


class TestFromACluster:
    def test_the_higher_leader_epoch_wins(self) -> None:
        adoption = adopt_cluster(cluster_of(HERE, HERE), *found(0, epoch=9), *found(1, epoch=2))
        assert [partition.leader_epoch for partition in adoption.topics[0].partitions] == [9, 4]

    def test_known_settings_are_adopted_and_others_are_named(self) -> None:
        cluster = cluster_of(HERE)
        cluster.configs = {
            ConfigResource(TOPIC_CONFIG, "t"): {"retention.ms": "5", "new.in.kafka.5": "x", "segment.bytes": "much"},
            ConfigResource(TOPIC_CONFIG, "deleted"): {"retention.ms": "5"},
            ConfigResource(BROKER_CONFIG, ""): {"log.cleaner.threads": "2", "listeners": "PLAINTEXT://:1"},
            ConfigResource(BROKER_CONFIG, "8"): {"log.cleaner.threads": "3"},
        }
        cluster.left_behind.update({"ACL": {"a", "b"}, "SCRAM credential": {"c"}, "client quota": set()})
        adoption = adopt_cluster(cluster, *found(0))
        assert adoption.configs == {
            ConfigResource(TOPIC_CONFIG, "t"): {"retention.ms": "5"},
            ConfigResource(BROKER_CONFIG, ""): {"log.cleaner.threads": "2"},
        }
        assert {line.split(": ")[0] for line in adoption.left_out} == {
            "2 ACLs",
            "1 SCRAM credential",
            "new.in.kafka.5=x of topics t",
            "segment.bytes=much of topics t",
            "listeners=PLAINTEXT://:1 of brokers (default)",
        }

    def test_directories_of_deleted_topics_are_ignored(self) -> None:
        cluster = cluster_of(HERE)
        cluster.removed.add(OTHER_ID)
        left = found(3, topic_id=OTHER_ID, name="deleted")
        assert [topic.name for topic in adopt_cluster(cluster, *found(0), *left).topics] == ["t"]

    def test_metadata_that_contradicts_the_directories_is_refused(self) -> None:
        cases = {
            "contain t-1, but the cluster's metadata does not": (cluster_of(HERE), [*found(0), *found(1)]),
            "contain t-0, but the cluster's metadata does not": (cluster_of(HERE), found(0, topic_id=OTHER_ID)),
            "directories of t-1, which belong to this broker, are missing": (cluster_of(HERE, HERE), found(0)),
            "t-1 is in the log directory with id": (cluster_of(HERE, KafkaPartition((7,), 0, (OTHER_ID,))), found(0)),
            "only other brokers have t-1": (cluster_of(HERE, KafkaPartition((8,), 0)), found(0)),
            "other brokers also have replicas of t-0": (cluster_of(KafkaPartition((8, 7), 0)), found(0)),
        }
        for message, (cluster, there) in cases.items():
            with pytest.raises(KafkaError, match=message):
                adopt_cluster(cluster, *there)

    def test_part_of_a_cluster_is_adopted_if_allowed(self) -> None:
        config = BrokerConfig({"node.id": "7", "headrace.adopt.partial": "true"})
        cluster = cluster_of(KafkaPartition((8, 7), 3), KafkaPartition((8,), 5), HERE)
        (topic,) = adopt_cluster(cluster, *found(0), config=config).topics
        assert [partition.leader_epoch for partition in topic.partitions] == [3, 5, 4]
        assert {partition.replicas for partition in topic.partitions} == {(7,)}

    def test_long_lists_of_names_are_shortened(self) -> None:
        with pytest.raises(KafkaError, match="t-1, t-2, t-3, t-4, t-5 and 3 more"):
            adopt_cluster(cluster_of(*[HERE] * 9), *found(0))


def test_producer_ids_continue_after_those_of_kafka() -> None:
    cluster = cluster_of(HERE)
    cluster.next_producer_id = 3000
    operations = adopted(adopt_cluster(cluster, *found(0)), 7)
    block = next(operation for operation in operations if operation.path == "/latest_producer_id_block")
    assert b'"block_end":"2999"' in getattr(block, "data", b"")
    assert "/brokers/topics/t/partitions/0/state" in {operation.path for operation in operations}
