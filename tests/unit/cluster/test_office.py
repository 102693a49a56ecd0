import json
from pathlib import Path

import pytest

from headrace.adoption.plan import FoundPartition, adopt, adopted
from headrace.cluster.image import BROKER_CONFIG, ConfigResource
from headrace.cluster.store import MetadataStore, Operation
from headrace.cluster.stores.embedded import EmbeddedStore
from headrace.cluster.topic_changes import NewPartitions, NewTopic
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from tests.unit.cluster.clusters import Cluster, broker, started


def found_topic() -> list[Operation]:
    return adopted(adopt([FoundPartition("t", 0, None, 6)], None, BrokerConfig(), ()), 1)


async def test_a_new_store_gets_kafkas_nodes_and_a_registration_whose_zxid_is_the_broker_epoch(
    store: MetadataStore, cluster: Cluster
) -> None:
    assert json.loads((await store.get("/cluster/id")).data)["id"] == cluster.image.cluster_id
    assert len(cluster.image.cluster_id) == 22
    assert json.loads((await store.get("/controller")).data)["brokerid"] == 0
    assert (await store.get("/controller_epoch")).data == b"1"
    assert await store.children("/brokers/ids") == ["0"]
    registered = (await store.get("/brokers/ids/0")).stat
    assert (registered.version, registered.owner) == (1, store.session)
    assert cluster.image.brokers[0].epoch == registered.czxid
    assert set(await store.children("/config")) >= {"topics", "brokers", "clients", "users", "changes"}


async def test_a_store_of_another_cluster_is_refused(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    first = Cluster(store)
    await first.start("abc")
    assert first.image.cluster_id == "abc"
    await store.close()
    again = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    with pytest.raises(KafkaError, match="cluster xyz, but the metadata store to cluster abc") as caught:
        await Cluster(again).start("xyz")
    assert caught.value.code is ErrorCode.inconsistent_cluster_id
    await again.close()


async def test_two_brokers_cannot_have_the_same_id(cluster: Cluster) -> None:
    with pytest.raises(KafkaError, match="Another broker with id 0 is running") as caught:
        await cluster.office.register(broker(0))
    assert caught.value.code == ErrorCode.duplicate_broker_registration


async def test_settings_survive_a_restart_and_the_epochs_of_controller_and_leaders_rise(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    cluster = await started(store)
    await cluster.admin.create_topics([NewTopic("t", 2, configs={"retention.ms": "5"})])
    await cluster.admin.alter_configs([(ConfigResource(BROKER_CONFIG, ""), lambda _: {"message.max.bytes": "99"})])
    before = cluster.image
    await cluster.close()
    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    after = (await started(store)).image
    assert after.configs == before.configs
    assert (before.controller_epoch, after.controller_epoch) == (1, 2)
    assert [partition.leader_epoch for partition in after.topics["t"].partitions] == [1, 1]
    assert after.topics["t"].topic_id == before.topics["t"].topic_id
    await store.close()


async def test_a_replaced_controller_changes_nothing(
    store: MetadataStore, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await store.set("/controller_epoch", b"2")
    with pytest.raises(KafkaError, match="Another process changed the metadata: restart the broker"):
        await cluster.admin.create_topics([NewTopic("t")])
    assert "restart the broker" in caplog.text
    assert await store.children("/brokers/topics") == []
    assert not cluster.led


async def test_an_unreadable_node_needs_a_backup_and_not_a_restart(
    store: MetadataStore, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await store.set("/latest_producer_id_block", b"{")
    with pytest.raises(KafkaError, match="from a backup") as caught:
        await cluster.producer_ids.allocate()
    assert "restart the broker" not in f"{caught.value} {caplog.text}"


async def test_a_new_broker_does_not_affect_leaders_and_epochs(cluster: Cluster) -> None:
    await cluster.admin.create_topics([NewTopic("t", 2)])
    await cluster.admin.create_partitions([NewPartitions("t", 3)])
    await cluster.office.register(broker(1))
    partitions = cluster.image.topics["t"].partitions
    assert [(partition.leader, partition.leader_epoch) for partition in partitions] == [(0, 0)] * 3


async def test_topics_found_on_disk_get_a_higher_leader_epoch(store: MetadataStore) -> None:
    cluster = Cluster(store)
    await cluster.start("abc", found_topic())
    assert [state.leader_epoch for state in cluster.led] == [7]


async def test_leftovers_of_deleted_topics_are_not_adopted(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    await started(store)
    await store.close()
    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    cluster = Cluster(store)
    await cluster.start(founding=found_topic())
    assert not cluster.image.topics
    await store.close()


async def test_a_topic_without_an_id_gets_a_permanent_one(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    await started(store)
    await store.create("/brokers/topics/old", b'{"version":1,"partitions":{"0":[0]}}')
    await store.create("/brokers/topics/old/partitions")
    await store.close()
    ids = set()
    for _ in range(2):
        store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
        topic = (await started(store)).image.topics["old"]
        assert topic.partitions[0].leader == 0
        ids.add(topic.topic_id)
        await store.close()
    assert len(ids) == 1


async def test_producer_ids_are_unique(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    cluster = await started(store)
    blocks = [await cluster.producer_ids.allocate() for _ in range(3)]
    assert blocks == [(0, 1000), (1000, 1000), (2000, 1000)]
    await cluster.close()
    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    assert await (await started(store)).producer_ids.allocate() == (3000, 1000)
    await store.close()
