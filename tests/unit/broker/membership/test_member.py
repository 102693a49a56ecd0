"""A member's work after changes in ZooKeeper, with a store that fails."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from headrace.broker.membership import member as members
from headrace.broker.membership.member import Member
from headrace.cluster.image import TOPIC_CONFIG, ConfigResource, MetadataImage, TopicImage
from headrace.cluster.metadata_cache import MetadataCache
from headrace.cluster.store import StoreUnavailableError
from headrace.config import BrokerConfig, ConfigError
from headrace.errors import ErrorCode
from tests.unit.broker.asking import raises_code


class FailingStore:
    """Has `errors` for the next attempts."""

    address = "zk:2181"
    session = 0

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.is_closed = False


@pytest.fixture
async def member(monkeypatch: pytest.MonkeyPatch) -> Member:
    monkeypatch.setattr(members, "_RETRY_S", 0.0)
    loop = asyncio.get_running_loop()
    config = BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0"})
    return Member(config, "127.0.0.1:1", MetadataCache(), loop)


def test_a_listener_without_an_address_is_refused() -> None:
    config = BrokerConfig({"listeners": "PLAINTEXT://:9092"})
    with pytest.raises(ConfigError, match=r"^Invalid value .* for listeners: other brokers cannot reach it: set"):
        members.inter_broker_listener(config)


def test_the_error_for_a_missing_inter_broker_listener_names_the_setting_to_change() -> None:
    a = {"listeners": "A://host:9092", "listener.security.protocol.map": "A:PLAINTEXT"}
    for setting, config in (("listeners", a), ("advertised.listeners", a | {"advertised.listeners": "A://host:1"})):
        with pytest.raises(ConfigError, match=f" for {setting}: must contain PLAINTEXT"):
            members.inter_broker_listener(BrokerConfig(config))


async def test_unclean_elections_are_allowed_by_any_spelling_of_true(member: Member) -> None:
    for value, expected in (("TRUE", True), (" true ", True), ("false", False)):
        resource = ConfigResource(TOPIC_CONFIG, "t")
        await member._cache.apply_configs({resource: {"unclean.leader.election.enable": value}})
        assert member._may_be_unclean("t") is expected, value


async def follow(member: Member, store: FailingStore) -> int:
    """Let the member follow changes until the errors are used up; return the number of attempts to rejoin."""
    attempts = 0

    async def rejoin() -> None:
        nonlocal attempts
        attempts += 1
        if store.errors:
            raise store.errors.pop(0)

    member._store = cast("Any", store)
    member._rejoin = rejoin  # type: ignore[method-assign]
    member._must_rejoin = True
    member._wake()
    task = asyncio.create_task(member._follow())
    for _ in range(50):
        await asyncio.sleep(0)
    if task.done():
        task.result()
    task.cancel()
    return attempts


@pytest.mark.parametrize(
    "error", [StoreUnavailableError("/brokers/ids/1"), RuntimeError("a defect")], ids=["the store", "a defect"]
)
async def test_a_member_tries_again_after_every_error(member: Member, error: Exception) -> None:
    assert await follow(member, FailingStore(error)) == 2


async def test_a_member_stops_with_its_store(member: Member) -> None:
    store = FailingStore(StoreUnavailableError("/brokers/ids/1"))
    store.is_closed = True
    assert await follow(member, store) == 1


async def test_the_settings_of_a_topic_that_was_created_again_are_read(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = member._cache
    known = {"a": TopicImage("a", UUID(int=1), ()), "b": TopicImage("b", UUID(int=2), ())}
    cache.image = MetadataImage(topics=known)
    asked: list[str] = []

    async def read_topics(names: Iterable[str]) -> dict[Any, Any]:
        asked.extend(names)
        return {}

    monkeypatch.setattr(member._configs, "read_topics", read_topics)
    await member._read_configs([("a", UUID(int=9)), ("b", UUID(int=2)), ("c", UUID(int=3))])
    assert sorted(asked) == ["a", "c"]


async def test_a_member_may_open_its_logs_for_longer_than_the_session_timeout(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog, which ends a process with a blocked event loop, begins with the registration."""
    steps: list[str] = []

    class Recorder:
        def start(self) -> None:
            steps.append("watch")

    class Store(FailingStore):
        async def connect(self, _: float) -> None:
            steps.append("connect")

        async def children(self, _: str) -> list[str]:
            return []

    async def check(*_: object, **__: object) -> str:
        return "cluster"

    async def register() -> None:
        steps.append("register")

    monkeypatch.setattr(members, "found_cluster", check)
    monkeypatch.setattr(members, "check_cluster", check)
    monkeypatch.setattr(member, "_watchdog", Recorder())
    monkeypatch.setattr(member, "_store", Store())
    monkeypatch.setattr(member, "_register", register)
    monkeypatch.setattr(member.candidate, "stand", lambda: None)
    assert await member.connect() == "cluster"
    assert steps == ["connect"]
    await member.join((), asyncio.Event())
    assert steps == ["connect", "watch", "register"]
    assert member._following is not None
    member._following.cancel()


async def test_a_stopping_broker_refuses_the_news_of_a_topic_whose_settings_it_cannot_read(member: Member) -> None:
    class ClosedConfigs:
        async def read_topics(self, _: Iterable[str]) -> None:
            raise StoreUnavailableError("/config/topics/t", "the session was closed")

    member._configs = cast("Any", ClosedConfigs())
    with raises_code(ErrorCode.broker_not_available):
        await member._read_configs([("t", None)])


async def test_a_member_that_leaves_follows_no_further_partitions(member: Member) -> None:
    with ThreadPoolExecutor(1) as executor:
        fetchers = member.fetchers(executor)
    member.broker_epoch = 5
    following: list[bool] = []

    async def shut_down() -> None:
        following.append(not fetchers.is_leaving)

    member.controller.shut_down = shut_down  # type: ignore[method-assign]
    await member.leave()
    assert following == [False]


class StoppedWatchdog:
    """Remembers that it was stopped."""

    is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


@pytest.mark.parametrize("is_controlled", [True, False])
async def test_a_member_may_close_its_logs_for_longer_than_the_session_timeout(
    member: Member, monkeypatch: pytest.MonkeyPatch, is_controlled: bool
) -> None:
    """The watchdog, which ends a process with a blocked event loop, stops with the controlled shutdown."""
    watchdog = StoppedWatchdog()
    watched: list[bool] = []

    async def shut_down() -> None:
        watched.append(not watchdog.is_stopped)
        raise RuntimeError("a defect")

    monkeypatch.setattr(member, "_watchdog", watchdog)
    monkeypatch.setattr(member.controller, "shut_down", shut_down)
    member.broker_epoch = 5 if is_controlled else -1
    with suppress(RuntimeError):
        await member.leave()
    assert watchdog.is_stopped
    assert watched == [True] * is_controlled


async def test_settings_that_have_changed_while_the_connection_was_lost_allow_unclean_elections(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics: list[str | None] = []
    resource = ConfigResource(TOPIC_CONFIG, "t")

    async def load(*, again: bool) -> dict[ConfigResource, dict[str, str]]:
        assert again
        return {resource: {"unclean.leader.election.enable": "true"}}

    monkeypatch.setattr(member, "_store", FailingStore())
    monkeypatch.setattr(member.candidate, "stand", lambda: None)
    monkeypatch.setattr(member.candidate, "term", SimpleNamespace(note_unclean=topics.append))
    monkeypatch.setattr(member._configs, "load", load)
    await member._rejoin()
    await member._rejoin()  # nothing has changed since
    assert topics == ["t"]


class EventStore(FailingStore):
    """Creates notifications, with `meanwhile` before each `create` returns."""

    def __init__(self, *errors: Exception, meanwhile: Callable[[], None] = lambda: None) -> None:
        super().__init__(*errors)
        self.meanwhile = meanwhile
        self.created: list[str] = []

    async def create(self, path: str, *_: object, **__: object) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.created.append(path)
        await asyncio.sleep(0)
        self.meanwhile()


async def notifications(member: Member, monkeypatch: pytest.MonkeyPatch, store: EventStore) -> int:
    """Return how many notifications the controller gets for one failure and those that `store.meanwhile` notes."""

    async def nothing() -> None:
        """Find no changed settings."""

    monkeypatch.setattr(member, "_rejoin", nothing)
    monkeypatch.setattr(member._configs, "follow", nothing)
    monkeypatch.setattr(member, "_store", store)
    task = asyncio.create_task(member._follow())
    member.note_offline_partitions()
    for _ in range(50):
        await asyncio.sleep(0)
    task.cancel()
    return len(store.created)


async def test_a_directory_that_fails_while_another_one_is_reported_is_reported_too(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([True])

    def fail() -> None:
        if next(failures, False):
            member.note_offline_partitions()

    assert await notifications(member, monkeypatch, EventStore(meanwhile=fail)) == 2


async def test_a_failure_that_could_not_be_reported_is_reported_again(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = EventStore(StoreUnavailableError("/log_dir_event_notification"))
    assert await notifications(member, monkeypatch, store) == 1
