import asyncio
import json
from collections.abc import Mapping, Sequence

import pytest

from headrace.cluster.image import TOPIC_CONFIG, ConfigResource, TopicImage
from headrace.cluster.store import Done, MetadataStore, Operation, StoreUnavailableError
from headrace.cluster.topic_changes import NewPartitions, NewTopic
from headrace.errors import ErrorCode, KafkaError
from headrace.types import PartitionState, TopicPartition
from tests.unit.cluster.clusters import Cluster


async def test_a_created_topic_is_stored_visible_and_led(store: MetadataStore, cluster: Cluster) -> None:
    (topic,) = await cluster.admin.create_topics([NewTopic("t", 2, configs={"retention.ms": "5"})])
    assert isinstance(topic, TopicImage)
    assert cluster.image.topics["t"] == topic
    assert json.loads((await store.get("/brokers/topics/t/partitions/1/state")).data)["leader_epoch"] == 0
    assert json.loads((await store.get("/config/topics/t")).data)["config"] == {"retention.ms": "5"}
    assert cluster.led == [PartitionState("t", topic.topic_id, n, 0, 0, (0,), (0,), True, 1) for n in (0, 1)]


async def test_a_topic_becomes_visible_after_its_logs_are_created(cluster: Cluster) -> None:
    seen: list[tuple[str, bool]] = []

    async def slow(states: Sequence[PartitionState]) -> None:
        await asyncio.sleep(0)
        seen.extend((state.topic, state.topic in cluster.image.topics) for state in states)
        assert cluster.cache.topic_config("t") == {"retention.ms": "5"}

    cluster.create_logs = slow
    await cluster.admin.create_topics([NewTopic("t", configs={"retention.ms": "5"})])
    assert seen == [("t", False)]
    assert "t" in cluster.image.topics


async def test_a_topic_is_visible_even_if_its_logs_cannot_be_created(cluster: Cluster) -> None:
    async def broken(_: Sequence[PartitionState]) -> None:
        raise RuntimeError("no disk")

    cluster.create_logs = broken
    with pytest.raises(RuntimeError, match="no disk"):
        await cluster.admin.create_topics([NewTopic("t")])
    assert "t" in cluster.image.topics


async def test_a_change_is_completed_even_if_the_caller_is_cancelled(
    store: MetadataStore, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store.multi

    async def slow(operations: Sequence[Operation]) -> list[Done]:
        await asyncio.sleep(0)
        done = await write(operations)
        await asyncio.sleep(0)
        return done

    monkeypatch.setattr(store, "multi", slow)
    created = []
    for steps in range(1, 12):
        creation = asyncio.ensure_future(cluster.admin.create_topics([NewTopic(f"t{steps}")]))
        for _ in range(steps):
            await asyncio.sleep(0)
        creation.cancel()
        await asyncio.gather(creation, return_exceptions=True)
        await cluster.admin.create_topics([NewTopic(f"u{steps}")])
        created += [f"t{steps}", f"u{steps}"]
        assert set(cluster.image.topics) == set(await store.children("/brokers/topics")) == set(created)
        assert [change.topic for change in cluster.led] == created


async def test_invalid_topics_do_not_prevent_others_from_being_created(cluster: Cluster) -> None:
    results = await cluster.admin.create_topics([NewTopic("a"), NewTopic("a b"), NewTopic("a"), NewTopic("b")])
    assert [result.code if isinstance(result, KafkaError) else result.name for result in results] == [
        "a",
        ErrorCode.invalid_topic_exception,
        ErrorCode.topic_already_exists,
        "b",
    ]
    assert set(cluster.image.topics) == {"a", "b"}


async def test_validate_only_changes_nothing(store: MetadataStore, cluster: Cluster) -> None:
    await cluster.admin.create_topics([NewTopic("t")])
    before = cluster.image, list(cluster.led)
    assert isinstance((await cluster.admin.create_topics([NewTopic("u")], validate_only=True))[0], TopicImage)
    assert await cluster.admin.create_partitions([NewPartitions("t", 9)], validate_only=True) == [None]
    resource = ConfigResource(TOPIC_CONFIG, "t")
    assert await cluster.admin.alter_configs([(resource, lambda _: {"retention.ms": "5"})], validate_only=True) == [
        None
    ]
    assert (cluster.image, cluster.led) == before
    assert await store.exists("/brokers/topics/u") is None


async def test_only_added_partitions_are_announced(cluster: Cluster) -> None:
    await cluster.admin.create_topics([NewTopic("t", 1)])
    cluster.led.clear()
    results = await cluster.admin.create_partitions([NewPartitions("t", 3), NewPartitions("u", 3)])
    assert [result and result.code for result in results] == [None, ErrorCode.unknown_topic_or_partition]
    assert [change.partition for change in cluster.led] == [1, 2]


async def test_a_deleted_topic_is_removed_from_the_store(store: MetadataStore, cluster: Cluster) -> None:
    await cluster.admin.create_topics([NewTopic("t"), NewTopic("u")])
    results = await cluster.admin.delete_topics(["t", "nothing"])
    assert [result and result.code for result in results] == [None, ErrorCode.unknown_topic_or_partition]
    assert await store.children("/brokers/topics") == ["u"]
    assert await store.children("/config/topics") == ["u"]
    assert cluster.stopped == [TopicPartition("t", 0)]


async def test_a_refused_alteration_does_not_affect_others(cluster: Cluster) -> None:
    def refuse(_: object) -> dict[str, str]:
        raise KafkaError(ErrorCode.invalid_config)

    results = await cluster.admin.alter_configs(
        [(ConfigResource(TOPIC_CONFIG, "a"), refuse), (ConfigResource(TOPIC_CONFIG, "b"), lambda _: {"x": "1"})]
    )
    assert [result and result.code for result in results] == [ErrorCode.invalid_config, None]
    assert cluster.image.config(TOPIC_CONFIG, "b") == {"x": "1"}


async def test_the_internal_topic_is_created_once(cluster: Cluster) -> None:
    first, second = await asyncio.gather(*(cluster.admin.create_internal_topic("__consumer_offsets") for _ in range(2)))
    assert first == second
    assert len(first.partitions) == 50


async def test_a_change_that_cannot_be_written_is_not_applied(
    store: MetadataStore, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(operations: list[Operation]) -> None:
        raise StoreUnavailableError("/", "disk full")

    monkeypatch.setattr(store, "multi", fail)
    with pytest.raises(KafkaError, match="disk full") as caught:
        await cluster.admin.create_topics([NewTopic("t")])
    assert caught.value.code == ErrorCode.kafka_storage_error
    assert not cluster.image.topics
    assert not cluster.led


async def test_concurrent_large_changes_are_serialized(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.slices.SLICE_S", 0.0)
    names = [f"t{number}" for number in range(15)]
    created, again, deleted, last = await asyncio.gather(
        cluster.admin.create_topics([NewTopic(name) for name in names]),
        cluster.admin.create_topics([NewTopic(name) for name in [*names, "more"]]),
        cluster.admin.delete_topics(names),
        cluster.admin.create_topics([NewTopic(name) for name in names[:12]]),
    )
    assert all(isinstance(result, TopicImage) for result in (*created, *last))
    assert [getattr(result, "name", None) for result in again if isinstance(result, TopicImage)] == ["more"]
    assert deleted == [None] * 15
    assert set(cluster.image.topics) == {*names[:12], "more"}
    assert len(cluster.deleted) == 15


async def test_concurrent_alterations_build_on_each_other(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.slices.SLICE_S", 0.0)
    names = [f"t{number}" for number in range(5)]
    await cluster.admin.create_topics([NewTopic(name) for name in names])

    def increment(current: Mapping[str, str]) -> Mapping[str, str]:
        return {"retention.ms": str(int(current.get("retention.ms", "0")) + 1)}

    alterations = [(ConfigResource(TOPIC_CONFIG, name), increment) for name in names]
    await asyncio.gather(*(cluster.admin.alter_configs(alterations) for _ in range(4)))
    assert [cluster.cache.topic_config(name) for name in names] == [{"retention.ms": "4"}] * 5


async def test_a_deletion_by_id_spares_a_new_topic_of_the_same_name(cluster: Cluster) -> None:
    (first,) = await cluster.admin.create_topics([NewTopic("t")])
    assert isinstance(first, TopicImage)
    outcomes = await asyncio.gather(
        cluster.admin.delete_topics(["t"]),
        cluster.admin.create_topics([NewTopic("t")]),
        cluster.admin.delete_topics(["t"], {"t": first.topic_id}),
    )
    assert outcomes[0] == [None]
    assert [error and error.code for error in outcomes[2]] == [ErrorCode.unknown_topic_or_partition]
    assert cluster.image.topics["t"].topic_id != first.topic_id
