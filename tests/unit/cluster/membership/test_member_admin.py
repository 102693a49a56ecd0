import json
import logging
from random import Random
from unittest.mock import AsyncMock

import pytest

from headrace.cluster import znodes
from headrace.cluster.drafts import Draft
from headrace.cluster.failures import StoreFailures
from headrace.cluster.image import GROUP_CONFIG, TOPIC_CONFIG, ConfigResource, MetadataImage
from headrace.cluster.membership.member_admin import MemberAdmin
from headrace.cluster.store import StoreUnavailableError
from headrace.cluster.topic_changes import NewTopic, create_topic
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from tests.unit.cluster.clusters import cluster_of
from tests.unit.cluster.membership.watched_store import WatchedMemory

T = ConfigResource(TOPIC_CONFIG, "t")


def admin_of(tree: WatchedMemory, image: MetadataImage | None = None) -> MemberAdmin:
    image = image or cluster_of(1, 2)
    return MemberAdmin(tree, lambda: image, BrokerConfig({"num.partitions": "2"}), StoreFailures(), random=Random(1))


async def auto_created(tree: WatchedMemory, name: str = "t", image: MetadataImage | None = None) -> ErrorCode:
    """Create a topic for a client, and return the error that it gets."""
    (result,) = await admin_of(tree, image).auto_create([name])
    assert isinstance(result, KafkaError)
    return result.code


async def test_creating_a_topic_writes_its_settings_and_its_assignment(tree: WatchedMemory) -> None:
    assert await auto_created(tree) is ErrorCode.leader_not_available
    assert json.loads((await tree.get("/config/topics/t")).data) == {"version": 1, "config": {}}
    assert sorted(json.loads((await tree.get("/brokers/topics/t")).data)["partitions"]) == ["0", "1"]
    assert await tree.children("/brokers/topics/t") == []


async def test_a_topic_that_another_broker_has_created_is_left_unchanged(tree: WatchedMemory) -> None:
    await tree.create("/brokers/topics/t", b"theirs")
    assert await auto_created(tree) is ErrorCode.leader_not_available
    assert (await tree.get("/brokers/topics/t")).data == b"theirs"


async def test_a_topic_that_exists_is_refused_with_the_reason(tree: WatchedMemory) -> None:
    draft = Draft(cluster_of(1, 2))
    topic = create_topic(draft, NewTopic("t"), BrokerConfig({}), Random(1))
    for path, reason in (
        ("/brokers/topics/t", "already exists"),
        ("/admin/delete_topics/t", "is being deleted, which waits"),
    ):
        await tree.create(path, b"theirs")
        with pytest.raises(KafkaError, match=reason) as caught:
            await admin_of(tree).write_topic(topic, draft)
        assert caught.value.code is ErrorCode.topic_already_exists


async def test_an_invalid_name_is_refused(tree: WatchedMemory) -> None:
    assert await auto_created(tree, "a/b") is ErrorCode.invalid_topic_exception


async def test_a_broker_without_metadata_creates_no_topics(tree: WatchedMemory) -> None:
    assert await auto_created(tree, image=cluster_of()) is ErrorCode.leader_not_available
    assert await tree.children("/brokers/topics") == []


async def test_an_internal_topic_waits_for_enough_brokers(tree: WatchedMemory) -> None:
    with pytest.raises(KafkaError) as caught:
        await admin_of(tree).create_internal_topic("__consumer_offsets")
    assert caught.value.code is ErrorCode.invalid_replication_factor
    assert await tree.children("/brokers/topics") == []


async def test_an_internal_topic_has_its_settings(tree: WatchedMemory) -> None:
    with pytest.raises(KafkaError) as caught:
        await admin_of(tree, cluster_of(1, 2, 3)).create_internal_topic("__consumer_offsets")
    assert caught.value.code is ErrorCode.coordinator_not_available
    settings = json.loads((await tree.get("/config/topics/__consumer_offsets")).data)["config"]
    assert settings["cleanup.policy"] == "compact"
    partitions = json.loads((await tree.get("/brokers/topics/__consumer_offsets")).data)["partitions"]
    assert {len(replicas) for replicas in partitions.values()} == {3}


async def test_changed_settings_are_written_and_notified(tree: WatchedMemory) -> None:
    await tree.create("/config/topics/t", znodes.encode_config({"a": "1"}))
    assert await admin_of(tree).alter_configs([(T, lambda current: {**current, "b": "2"})]) == [None]
    assert json.loads((await tree.get("/config/topics/t")).data)["config"] == {"a": "1", "b": "2"}
    (name,) = await tree.children("/config/changes")
    assert json.loads((await tree.get(f"/config/changes/{name}")).data) == {"version": 2, "entity_path": "topics/t"}


async def test_a_validation_writes_nothing(tree: WatchedMemory) -> None:
    assert await admin_of(tree).alter_configs([(T, lambda _: {"b": "2"})], validate_only=True) == [None]
    assert await tree.exists("/config/topics/t") is None
    assert await tree.children("/config/changes") == []


async def test_groups_have_no_settings(tree: WatchedMemory) -> None:
    (result,) = await admin_of(tree).alter_configs([(ConfigResource(GROUP_CONFIG, "g"), lambda _: {"b": "2"})])
    assert isinstance(result, KafkaError)
    assert result.code is ErrorCode.invalid_request


async def test_settings_that_cannot_be_read_are_an_error_of_their_resource(tree: WatchedMemory) -> None:
    await tree.create("/config/topics/t", b"garbage")
    other = ConfigResource(TOPIC_CONFIG, "u")
    malformed, changed = await admin_of(tree).alter_configs(
        [(T, lambda _: {"retention.ms": "1"}), (other, lambda _: {"retention.ms": "2"})]
    )
    assert malformed is not None
    assert malformed.code is ErrorCode.kafka_storage_error
    assert "/config/topics/t" in str(malformed)
    assert changed is None


async def test_the_end_of_a_failure_is_logged_by_the_next_creation(
    tree: WatchedMemory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    admin = admin_of(tree)
    with monkeypatch.context() as patch:
        patch.setattr(tree, "multi", AsyncMock(side_effect=StoreUnavailableError("h:1", "lost")))
        await admin.auto_create(["t"])
    assert "Topics and settings cannot be changed: " in caplog.text
    assert "can be changed again" not in caplog.text
    await admin.auto_create(["t"])
    assert "Topics and settings can be changed again" in caplog.text
