import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from headrace.adoption.plan import FoundPartition, adopt, adopted
from headrace.cluster.controller import ClusterIdMismatch, Controller, PartitionChange
from headrace.cluster.image import BROKER_CONFIG, TOPIC_CONFIG, ConfigResource, TopicImage
from headrace.cluster.store import MetadataStore, Operation, StoreUnavailable
from headrace.cluster.stores.embedded import EmbeddedStore
from headrace.cluster.topic_changes import NewPartitions, NewTopic
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from tests.unit.cluster.clusters import broker, started
from tests.unit.cluster.conftest import Recorder


async def test_a_new_tree_gets_kafkas_nodes(store: MetadataStore, controller: Controller) -> None:
    assert json.loads((await store.get("/cluster/id")).data)["id"] == controller.image.cluster_id
    assert len(controller.image.cluster_id) == 22
    assert json.loads((await store.get("/controller")).data)["brokerid"] == 0
    assert (await store.get("/controller_epoch")).data == b"1"
    assert await store.children("/brokers/ids") == ["0"]
    assert set(await store.children("/config")) >= {"topics", "brokers", "clients", "users", "changes"}


async def test_a_second_term_of_office_has_a_higher_epoch(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
        assert (await started(store)).image.controller_epoch == epoch
        await store.close()


async def test_the_data_directory_and_the_tree_must_belong_to_one_cluster(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    first = Controller(store, BrokerConfig(), now_ms=lambda: 0)
    await first.start("abc")
    assert first.image.cluster_id == "abc"
    await store.close()
    again = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    with pytest.raises(ClusterIdMismatch, match="cluster xyz, but the metadata store to cluster abc"):
        await Controller(again, BrokerConfig(), now_ms=lambda: 0).start("xyz")
    await again.close()


async def test_two_brokers_cannot_have_one_id(store: MetadataStore, controller: Controller) -> None:
    with pytest.raises(KafkaError, match="Another running broker has id 0") as caught:
        await controller.register(broker(0))
    assert caught.value.code == ErrorCode.duplicate_broker_registration


async def test_a_created_topic_is_durable_visible_and_told(
    store: MetadataStore, controller: Controller, recorder: Recorder
) -> None:
    (topic,) = await controller.create_topics([NewTopic("t", 2, configs={"retention.ms": "5"})])
    assert isinstance(topic, TopicImage)
    assert controller.image.topics["t"] == topic
    assert json.loads((await store.get("/brokers/topics/t/partitions/1/state")).data)["leader_epoch"] == 0
    assert json.loads((await store.get("/config/topics/t")).data)["config"] == {"retention.ms": "5"}
    assert recorder.partitions == [PartitionChange("t", topic.topic_id, n, 0, 0, (0,), (0,), True) for n in (0, 1)]


async def test_a_topic_is_seen_once_its_logs_are_made(controller: Controller) -> None:
    made: list[tuple[str, bool]] = []

    class Slow(Recorder):
        async def make_logs(self, changes: Sequence[PartitionChange]) -> None:
            await asyncio.sleep(0)
            made.extend((change.topic, change.topic in controller.image.topics) for change in changes)
            assert controller.upcoming.config(TOPIC_CONFIG, "t") == {"retention.ms": "5"}

    controller.attach(Slow())
    await controller.create_topics([NewTopic("t", configs={"retention.ms": "5"})])
    assert made == [("t", False)]
    assert "t" in controller.image.topics


async def test_a_topic_whose_logs_cannot_be_made_is_seen_all_the_same(controller: Controller) -> None:
    class Broken(Recorder):
        async def make_logs(self, changes: Sequence[PartitionChange]) -> None:
            raise RuntimeError("no disk")

    controller.attach(Broken())
    with pytest.raises(RuntimeError, match="no disk"):
        await controller.create_topics([NewTopic("t")])
    assert "t" in controller.image.topics


@pytest.mark.parametrize("steps", range(1, 12))
async def test_a_change_is_made_to_its_end_where_whoever_asked_for_it_goes_away(
    store: MetadataStore, controller: Controller, recorder: Recorder, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store.multi

    async def slow(operations: Sequence[Operation]) -> None:
        await asyncio.sleep(0)
        await write(operations)
        await asyncio.sleep(0)

    monkeypatch.setattr(store, "multi", slow)
    asked = asyncio.ensure_future(controller.create_topics([NewTopic("t")]))
    for _ in range(steps):
        await asyncio.sleep(0)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await controller.create_topics([NewTopic("u")])
    assert set(controller.image.topics) == set(await store.children("/brokers/topics")) == {"t", "u"}
    assert [change.topic for change in recorder.partitions] == ["t", "u"]


async def test_of_several_topics_those_that_can_be_are_created(controller: Controller) -> None:
    results = await controller.create_topics([NewTopic("a"), NewTopic("a b"), NewTopic("a"), NewTopic("b")])
    assert [result.code if isinstance(result, KafkaError) else result.name for result in results] == [
        "a",
        ErrorCode.invalid_topic_exception,
        ErrorCode.topic_already_exists,
        "b",
    ]
    assert set(controller.image.topics) == {"a", "b"}


async def test_validate_only_changes_nothing(store: MetadataStore, controller: Controller, recorder: Recorder) -> None:
    await controller.create_topics([NewTopic("t")])
    image, told = controller.image, list(recorder.partitions)
    assert isinstance((await controller.create_topics([NewTopic("u")], validate_only=True))[0], TopicImage)
    assert await controller.create_partitions([NewPartitions("t", 9)], validate_only=True) == [None]
    resource = ConfigResource(TOPIC_CONFIG, "t")
    assert await controller.alter_configs([(resource, lambda _: {"retention.ms": "5"})], validate_only=True) == [None]
    assert (controller.image, recorder.partitions, recorder.configs) == (image, told, [])
    assert await store.exists("/brokers/topics/u") is None


async def test_added_partitions_alone_are_told(controller: Controller, recorder: Recorder) -> None:
    await controller.create_topics([NewTopic("t", 1)])
    recorder.partitions.clear()
    results = await controller.create_partitions([NewPartitions("t", 3), NewPartitions("u", 3)])
    assert [result and result.code for result in results] == [None, ErrorCode.unknown_topic_or_partition]
    assert [change.partition for change in recorder.partitions] == [1, 2]


async def test_a_deleted_topic_is_gone_from_the_tree(
    store: MetadataStore, controller: Controller, recorder: Recorder
) -> None:
    await controller.create_topics([NewTopic("t"), NewTopic("u")])
    results = await controller.delete_topics(["t", "nothing"])
    assert [result and result.code for result in results] == [None, ErrorCode.unknown_topic_or_partition]
    assert await store.children("/brokers/topics") == ["u"]
    assert await store.children("/config/topics") == ["u"]
    assert [topic.name for topic in recorder.deleted] == ["t"]


async def test_a_topic_of_the_same_name_gets_another_id(controller: Controller) -> None:
    (first,) = await controller.create_topics([NewTopic("t")])
    await controller.delete_topics(["t"])
    (second,) = await controller.create_topics([NewTopic("t")])
    assert isinstance(first, TopicImage)
    assert isinstance(second, TopicImage)
    assert first.topic_id != second.topic_id


async def test_many_at_once_create_one_topic_once(controller: Controller) -> None:
    results = await asyncio.gather(*(controller.create_topics([NewTopic("t")]) for _ in range(5)))
    assert sum(isinstance(result, TopicImage) for (result,) in results) == 1


async def test_large_changes_that_come_together_are_made_one_after_the_other(
    controller: Controller, recorder: Recorder
) -> None:
    names = [f"t{number}" for number in range(150)]
    created, again, deleted, last = await asyncio.gather(
        controller.create_topics([NewTopic(name) for name in names]),
        controller.create_topics([NewTopic(name) for name in [*names, "more"]]),
        controller.delete_topics(names),
        controller.create_topics([NewTopic(name) for name in names[:120]]),
    )
    assert all(isinstance(result, TopicImage) for result in (*created, *last))
    assert [getattr(result, "name", None) for result in again if isinstance(result, TopicImage)] == ["more"]
    assert deleted == [None] * 150
    assert set(controller.image.topics) == {*names[:120], "more"}
    assert len(recorder.deleted) == 150


async def test_settings_are_worked_out_from_those_that_are_in_force(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.slices.SLICE_S", 0.0)
    names = [f"t{number}" for number in range(5)]
    await controller.create_topics([NewTopic(name) for name in names])

    def one_more(current: Mapping[str, str]) -> Mapping[str, str]:
        return {"retention.ms": str(int(current.get("retention.ms", "0")) + 1)}

    alterations = [(ConfigResource(TOPIC_CONFIG, name), one_more) for name in names]
    await asyncio.gather(*(controller.alter_configs(alterations) for _ in range(4)))
    assert [controller.image.config(TOPIC_CONFIG, name) for name in names] == [{"retention.ms": "4"}] * 5


async def test_a_topic_that_took_the_name_of_the_one_meant_stays(controller: Controller) -> None:
    (first,) = await controller.create_topics([NewTopic("t")])
    assert isinstance(first, TopicImage)
    outcomes = await asyncio.gather(
        controller.delete_topics(["t"]),
        controller.create_topics([NewTopic("t")]),
        controller.delete_topics(["t"], {"t": first.topic_id}),
    )
    assert outcomes[0] == [None]
    assert [error and error.code for error in outcomes[2]] == [ErrorCode.unknown_topic_or_partition]
    assert controller.image.topics["t"].topic_id != first.topic_id


async def test_settings_survive_a_restart_and_leader_epochs_rise(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    controller = await started(store)
    await controller.create_topics([NewTopic("t", 2, configs={"retention.ms": "5"})])
    await controller.alter_configs([(ConfigResource(BROKER_CONFIG, ""), lambda _: {"message.max.bytes": "99"})])
    before = controller.image
    await controller.close()
    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    config = BrokerConfig()
    after = (await started(store, config)).image
    assert after.configs == before.configs
    assert config.message_max_bytes == 99
    assert [partition.leader_epoch for partition in after.topics["t"].partitions] == [1, 1]
    assert after.topics["t"].topic_id == before.topics["t"].topic_id
    await store.close()


async def test_settings_of_the_broker_are_in_force_when_they_are_told(
    controller: Controller, config: BrokerConfig
) -> None:
    seen: list[int] = []

    class Listener(Recorder):
        def on_configs_changed(self, resources: Sequence[ConfigResource]) -> None:
            seen.append(config.message_max_bytes)

    controller.attach(Listener())
    await controller.alter_configs([(ConfigResource(BROKER_CONFIG, "0"), lambda _: {"message.max.bytes": "7"})])
    await controller.alter_configs([(ConfigResource(BROKER_CONFIG, "0"), lambda _: {})])
    assert seen == [7, 1_048_588]


async def test_settings_of_another_broker_are_not_this_ones(controller: Controller, config: BrokerConfig) -> None:
    await controller.alter_configs([(ConfigResource(BROKER_CONFIG, "1"), lambda _: {"message.max.bytes": "7"})])
    assert config.message_max_bytes == 1_048_588


async def test_an_alteration_that_is_refused_leaves_the_others(controller: Controller) -> None:
    def refuse(_: object) -> dict[str, str]:
        raise KafkaError(ErrorCode.invalid_config)

    results = await controller.alter_configs(
        [(ConfigResource(TOPIC_CONFIG, "a"), refuse), (ConfigResource(TOPIC_CONFIG, "b"), lambda _: {"x": "1"})]
    )
    assert [result and result.code for result in results] == [ErrorCode.invalid_config, None]
    assert controller.image.config(TOPIC_CONFIG, "b") == {"x": "1"}


async def test_the_internal_topic_is_created_once(controller: Controller) -> None:
    first, second = await asyncio.gather(*(controller.create_internal_topic("__consumer_offsets") for _ in range(2)))
    assert first == second
    assert len(first.partitions) == 50


async def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    controller = await started(store)
    blocks = await asyncio.gather(*(controller.allocate_producer_ids() for _ in range(3)))
    assert blocks == [(0, 1000), (1000, 1000), (2000, 1000)]
    await controller.close()
    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    assert await (await started(store)).allocate_producer_ids() == (3000, 1000)
    await store.close()


async def test_a_change_that_cannot_be_written_is_refused_and_not_made(
    store: MetadataStore, controller: Controller, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(operations: list[Operation]) -> None:
        raise StoreUnavailable("/", "disk full")

    monkeypatch.setattr(store, "multi", fail)
    with pytest.raises(KafkaError, match="disk full") as caught:
        await controller.create_topics([NewTopic("t")])
    assert caught.value.code == ErrorCode.kafka_storage_error
    assert not controller.image.topics
    assert not recorder.partitions


async def test_topics_found_on_disk_are_led_under_an_epoch_above_their_own(store: MetadataStore) -> None:
    controller = Controller(store, BrokerConfig(), now_ms=lambda: 0)
    await controller.start(
        "abc", adopted(adopt([FoundPartition("t", 0, None, 6)], None, BrokerConfig(), ()), 1).operations
    )
    await controller.register(broker())
    assert [change.leader_epoch for change in controller.partitions_of(0)] == [7]
    assert controller.partitions_of(1) == []


async def test_what_a_deletion_left_on_disk_does_not_come_back(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    await started(store)
    await store.close()
    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    controller = Controller(store, BrokerConfig(), now_ms=lambda: 0)
    await controller.start(
        founding=adopted(adopt([FoundPartition("t", 0, None, 6)], None, BrokerConfig(), ()), 1).operations
    )
    assert not controller.image.topics
    await store.close()


async def test_a_topic_without_an_id_gets_one_that_stays(tmp_path: Path) -> None:
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
