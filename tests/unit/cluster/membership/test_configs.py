from collections.abc import Mapping

import pytest

from headrace.cluster import znodes
from headrace.cluster.image import BROKER_CONFIG, TOPIC_CONFIG, ConfigResource
from headrace.cluster.membership.configs import Configs, ConfigWatch, changed_resource
from headrace.cluster.store import MalformedNodeError, NoNodeError
from tests.unit.cluster.membership.watched_store import WatchedMemory

T = ConfigResource(TOPIC_CONFIG, "t")
OWN, DEFAULT = ConfigResource(BROKER_CONFIG, "4"), ConfigResource(BROKER_CONFIG, "")
YEAR_2033_MS = 2_000_000_000_000


class Follower:
    """Broker 4 follows settings."""

    def __init__(self, tree: WatchedMemory) -> None:
        self.tree = tree
        self.applied: list[Configs] = []
        self.notified = 0
        self.now_ms = 0
        self.watch = ConfigWatch(tree, 4, apply=self._apply, changed=self._changed, now_ms=lambda: self.now_ms)

    async def _apply(self, configs: Configs) -> None:
        self.applied.append(configs)

    def _changed(self) -> None:
        self.notified += 1

    async def put(self, resource: ConfigResource, values: Mapping[str, str], *, notify: bool = True) -> None:
        path = znodes.config_path(resource)
        try:
            await self.tree.set(path, znodes.encode_config(values))
        except NoNodeError:
            await self.tree.create(path, znodes.encode_config(values))
        if notify:
            entity = path.removeprefix("/config/")
            await self.tree.create(znodes.CONFIG_CHANGE, znodes.encode_config_change(entity), sequential=True)


@pytest.fixture
def follower(tree: WatchedMemory) -> Follower:
    return Follower(tree)


async def test_all_topics_and_this_broker_are_loaded(follower: Follower) -> None:
    await follower.put(T, {"retention.ms": "5"})
    await follower.put(OWN, {"log.cleaner.threads": "2"})
    await follower.put(ConfigResource(BROKER_CONFIG, "5"), {"log.cleaner.threads": "3"})
    assert await follower.watch.load() == {T: {"retention.ms": "5"}, OWN: {"log.cleaner.threads": "2"}, DEFAULT: {}}


async def test_every_change_is_notified_and_applied(follower: Follower) -> None:
    await follower.watch.load()
    for count, value in enumerate(("6", "7"), 1):
        await follower.put(T, {"retention.ms": value})
        assert follower.notified == count
        await follower.watch.follow()
    assert follower.applied == [{T: {"retention.ms": "6"}}, {T: {"retention.ms": "7"}}]


async def test_changes_before_the_load_are_not_applied_again(follower: Follower) -> None:
    await follower.put(T, {"retention.ms": "6"})
    await follower.watch.load()
    await follower.watch.follow()
    assert follower.applied == []


async def test_changes_of_other_brokers_do_not_matter(follower: Follower) -> None:
    await follower.watch.load()
    await follower.put(ConfigResource(BROKER_CONFIG, "5"), {"log.cleaner.threads": "3"})
    await follower.watch.follow()
    assert follower.applied == []


async def test_a_topic_deleted_since_the_last_load_has_no_settings(follower: Follower) -> None:
    await follower.put(T, {"retention.ms": "6"})
    await follower.watch.load()
    await follower.tree.delete(znodes.config_path(T))
    assert (await follower.watch.load())[T] == {}


async def test_an_unreadable_notification_is_ignored(follower: Follower) -> None:
    await follower.watch.load()
    await follower.tree.create(znodes.CONFIG_CHANGE, b"{}", sequential=True)
    await follower.put(T, {"retention.ms": "6"})
    await follower.watch.follow()
    assert follower.applied == [{T: {"retention.ms": "6"}}]


async def test_malformed_settings_do_not_change_a_running_broker(
    follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    await follower.put(T, {"retention.ms": "6"})
    await follower.watch.load()
    for resource in (T, OWN):
        await follower.put(resource, {"log.cleaner.threads": "2"})
    await follower.tree.set(znodes.config_path(T), b"?")
    await follower.watch.follow()
    assert follower.applied == [{OWN: {"log.cleaner.threads": "2"}}]
    assert "Ignored the malformed settings in node /config/topics/t: correct or delete it" in caplog.text
    assert T not in await follower.watch.load(again=True)


async def test_a_broker_does_not_start_with_malformed_settings(follower: Follower) -> None:
    await follower.tree.create(znodes.config_path(T), b"?")
    with pytest.raises(MalformedNodeError, match="/config/topics/t"):
        await follower.watch.load()


async def test_old_notifications_are_deleted(follower: Follower) -> None:
    await follower.put(T, {"retention.ms": "6"})
    await follower.watch.load()
    await follower.watch.follow()
    assert len(await follower.tree.children("/config/changes")) == 1
    follower.now_ms = YEAR_2033_MS
    await follower.watch.follow()
    assert await follower.tree.children("/config/changes") == []


def test_notifications_of_both_versions_are_read() -> None:
    old = b'{"version":1,"entity_type":"topics","entity_name":"t"}'
    new = b'{"version":2,"entity_path":"brokers/<default>"}'
    assert [changed_resource(old), changed_resource(new)] == [T, DEFAULT]
