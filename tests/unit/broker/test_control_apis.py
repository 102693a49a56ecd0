"""A broker executes the requests of a controller, and answers as Kafka's brokers do."""

import asyncio
import errno
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.apis.controls import ControlApis
from headrace.broker.commands import Commands
from headrace.broker.state_changes import LOGGER, StateChanges
from headrace.cluster.commands import DURING_DELETION
from headrace.cluster.image import TOPIC_CONFIG, ConfigResource
from headrace.cluster.metadata_cache import MetadataCache
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.following.partition import FollowedPartition
from headrace.replication.leading.isr_changes import Answer, IsrChange
from headrace.replication.leading.peers import Peers
from headrace.replication.partition import Partition
from headrace.replication.producer_recovery import recover_producers
from headrace.replication.replica_manager import ReplicaManager
from headrace.slices import Pace, run_all
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.storage.log.leader_epochs import LeaderEpochs
from headrace.storage.log.log import Log
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.records import RecordData, build_batch
from tests.unit.broker.asking import ask, raises_code

OWN, OTHER = 4, 1
TOPIC_ID = UUID(int=5)
T0 = TopicPartition("t", 0)
BROKER_EPOCH = 70
NOW = 1_700_000_000_000
RECORD = build_batch([RecordData(None, b"v", NOW)])
NONE = ErrorCode.none


class NoController:
    def submit(self, *_: object) -> None: ...


class Broker:
    """Broker 4; broker 1 is the controller."""

    def __init__(self, directory: Path) -> None:
        self.executor = ThreadPoolExecutor(1)
        self.cache = MetadataCache()
        self.config = LogConfig()
        self.replicas = ReplicaManager(LogDirs.open([directory], broker_id=OWN), lambda _: self.config)
        changes = StateChanges(is_logged=True)
        self.commands = Commands(OWN, self.replicas, self.cache, self.executor, changes)
        self.commands.following = self
        self.commands.on_led = lambda partition: self.coordinators.append(("led", partition))
        self.commands.on_resigned = lambda partition: self.coordinators.append(("resigned", partition))
        self.coordinators: list[tuple[str, TopicPartition]] = []
        self.copied: dict[TopicPartition, tuple[int, int]] = {}
        """Leader and epoch of the partitions that are fetched."""
        self.configs_read: list[str] = []
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        """Happens once while settings are read."""
        self.routes = ControlApis(
            self.commands, self.cache, broker_epoch=lambda: BROKER_EPOCH, read_configs=self._read_configs
        ).routes()

    async def _read_configs(self, topics: Any) -> None:
        self.configs_read += [name for name, _ in topics]
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()

    def follow(self, partitions: Sequence[FollowedPartition]) -> None:
        for partition in partitions:
            self.copied[partition.topic_partition] = (partition.leader, partition.leader_epoch)

    def forget(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            self.copied.pop(partition, None)

    async def close_idle(self) -> None:
        """Do nothing: there are no connections."""

    async def ask(self, key: ApiKey, version: int, fields: dict[str, Any]) -> Any:
        return await ask(self.routes, key, version, fields)

    async def update(
        self,
        leader: int = OTHER,
        epoch: int = 0,
        *,
        replicas: Sequence[int] = (OTHER, OWN),
        brokers: Sequence[int] = (OTHER, OWN),
        topic_id: UUID = TOPIC_ID,
        **changed: Any,
    ) -> Any:
        state = {
            "partition_index": 0,
            "controller_epoch": 1,
            "leader": leader,
            "leader_epoch": epoch,
            "zk_version": 0,
            "replicas": replicas,
            "isr": [OTHER],
        }
        endpoints = [{"port": 9092, "host": "h", "listener": "PLAINTEXT", "security_protocol": 0}]
        return await self.ask(
            ApiKey.UPDATE_METADATA,
            8,
            {
                **sender(),
                "topic_states": [{"topic_name": "t", "topic_id": topic_id, "partition_states": [state]}],
                "live_brokers": [{"id": broker, "endpoints": endpoints} for broker in brokers],
                **changed,
            },
        )

    async def assign(
        self,
        leader: int,
        epoch: int = 0,
        *,
        topic_id: UUID | None = TOPIC_ID,
        name: str = "t",
        partition: int = 0,
        **changed: Any,
    ) -> ErrorCode:
        """Send LeaderAndIsr for one partition. Return its error, or that of the whole request."""
        state = {
            "partition_index": partition,
            "controller_epoch": 1,
            "leader": leader,
            "leader_epoch": epoch,
            "partition_epoch": 0,
            "replicas": changed.pop("replicas", [OTHER, OWN]),
            "isr": changed.pop("isr", [leader]),
            "is_new": True,
        }
        topic = {"topic_name": name, "topic_id": topic_id, "partition_states": [state]}
        fields = {**sender(), "topic_states": [topic], "live_leaders": [], **changed}
        reply = await self.ask(ApiKey.LEADER_AND_ISR, 7, fields)
        if reply.error_code is not NONE:
            return ErrorCode(reply.error_code)
        assert reply.topics[0].topic_id == topic_id
        return ErrorCode(reply.topics[0].partition_errors[0].error_code)

    async def stop(self, epoch: int, *, delete: bool, **changed: Any) -> ErrorCode:
        state = {"partition_index": 0, "leader_epoch": epoch, "delete_partition": delete}
        topics = [{"topic_name": "t", "partition_states": [state]}]
        reply = await self.ask(ApiKey.STOP_REPLICA, 4, {**sender(), "topic_states": topics, **changed})
        return ErrorCode(reply.partition_errors[0].error_code)

    def refusal(self) -> ErrorCode:
        with pytest.raises(KafkaError) as caught:
            self.replicas.get("t", 0)
        return caught.value.code

    def followed(self) -> FollowedPartition:
        (followed,) = self.replicas.followed()
        return followed


def sender(**changed: int) -> Mapping[str, int]:
    return {"controller_id": OTHER, "controller_epoch": 3, "broker_epoch": BROKER_EPOCH, **changed}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.replicas.close()
    broker.executor.shutdown()


# Metadata


async def test_clients_see_what_the_controller_announced_and_settings_are_read(broker: Broker) -> None:
    assert (await broker.update()).error_code is NONE
    image = broker.cache.image
    assert (image.controller_id, sorted(image.brokers)) == (OTHER, [OTHER, OWN])
    assert image.topics["t"].partitions[0].leader == OTHER
    assert broker.configs_read == ["t"]


async def test_the_settings_of_a_topic_that_was_created_again_unnoticed_are_kept(broker: Broker) -> None:
    resource = ConfigResource(TOPIC_CONFIG, "t")

    async def read() -> None:
        broker.cache.note_configs({resource: {"max.message.bytes": "200"}})

    await broker.update()
    broker.meanwhile = read
    await broker.update(topic_id=UUID(int=6))
    assert broker.cache.topic_config("t") == {"max.message.bytes": "200"}
    assert broker.cache.image.names == {UUID(int=6): "t"}


async def test_a_deleted_topic_loses_its_settings(broker: Broker) -> None:
    await broker.update()
    broker.cache.note_configs({ConfigResource(TOPIC_CONFIG, "t"): {"max.message.bytes": "200"}})
    await broker.update(DURING_DELETION)
    assert broker.cache.topic_config("t") == {}


# Leading and following


async def test_a_followed_partition_is_copied_and_refused_to_clients(broker: Broker) -> None:
    await broker.update()
    assert await broker.assign(OTHER, 2) is NONE
    assert broker.copied == {T0: (OTHER, 2)}
    assert broker.refusal() is ErrorCode.not_leader_or_follower


async def test_a_leader_that_resigns_keeps_its_log(broker: Broker) -> None:
    await broker.update()
    await broker.assign(OWN)
    led = broker.replicas.get("t", 0)
    led.append_as_leader(RECORD, now_ms=NOW)
    assert await broker.assign(OTHER, 1) is NONE
    assert (broker.followed().log, broker.followed().high_watermark) == (led.log, 1)
    assert broker.coordinators == [("led", T0), ("resigned", T0)]


async def test_a_leader_whose_partition_was_moved_while_it_had_no_session_resigns_and_keeps_its_log(
    broker: Broker,
) -> None:
    await resigned(broker)
    assert broker.refusal() is ErrorCode.not_leader_or_follower
    assert broker.coordinators[-1] == ("resigned", T0)
    await broker.assign(OTHER, 2)
    assert broker.followed().log_end_offset == 1


async def test_records_do_not_wait_for_a_follower_whose_broker_has_left(broker: Broker) -> None:
    def is_alive(broker_id: int) -> bool:
        return broker_id in broker.cache.image.brokers

    class Refusing:
        def submit(self, _: IsrChange, done: Callable[[Answer], None]) -> None:
            done(ErrorCode.ineligible_replica)

    broker.replicas.peers = Peers(OWN, is_alive, lambda: 10_000, lambda: 0, Refusing())
    await broker.update(OWN, replicas=[OWN, 9], brokers=(OTHER, OWN, 9))
    await broker.assign(OWN, replicas=[OWN, 9])
    led = broker.replicas.get("t", 0)
    led.fetched_by(9, 0, 0, -1)  # it keeps up, so the leader waits for it
    led.append_as_leader(RECORD, now_ms=NOW)
    assert led.high_watermark == 0
    await broker.update(OWN, replicas=[OWN, 9], brokers=(OTHER, OWN))
    assert led.high_watermark == 1


async def test_a_leader_resigns_only_under_a_later_epoch(broker: Broker) -> None:
    await broker.update(OWN)
    await broker.assign(OWN, 1)
    await broker.update(OTHER, 1, replicas=[OTHER])
    assert broker.replicas.get("t", 0).leader_epoch == 1


async def test_a_follower_that_is_elected_is_copied_no_more(broker: Broker) -> None:
    await broker.update()
    await broker.assign(OTHER)
    log = broker.followed().log
    assert await broker.assign(OWN, 1) is NONE
    assert broker.copied == {}
    assert broker.replicas.followed() == ()
    assert broker.replicas.get("t", 0).log is log


async def test_the_only_replica_left_commits_nothing_until_the_others_have_left_the_isr(broker: Broker) -> None:
    """At the end of a reassignment, another controller could still elect one of them."""
    broker.replicas.peers = Peers(OWN, lambda _: True, lambda: 10_000, lambda: 0, NoController())
    await broker.update()
    await broker.assign(OTHER)
    broker.followed().append_fetched(memoryview(RECORD), NOW)
    await broker.assign(OWN, 1, replicas=[OWN], isr=[OTHER, OWN])
    assert broker.replicas.get("t", 0).high_watermark == 0
    await broker.assign(OWN, 2, replicas=[OWN], isr=[OWN])
    assert broker.replicas.get("t", 0).high_watermark == 1


async def test_a_follower_changes_its_leader(broker: Broker) -> None:
    await broker.update(brokers=(OTHER, OWN, 9))
    await broker.assign(OTHER)
    await broker.assign(9, 1)
    assert broker.copied == {T0: (9, 1)}


async def test_a_follower_of_a_dead_leader_has_a_log_but_copies_nothing(broker: Broker, tmp_path: Path) -> None:
    await broker.update(brokers=(OWN,))
    assert await broker.assign(OTHER) is NONE
    assert (tmp_path / "t-0").is_dir()
    assert broker.copied == {}
    assert await broker.assign(OWN, 1) is NONE  # it may be elected


async def waiting(broker: Broker, *, count: int = 0) -> Log:
    """Restart the replicas with `count` records, then open the log while the leader is dead. Return the log."""
    broker.replicas.become_leader(T0, TOPIC_ID, 0)
    led = broker.replicas.get("t", 0)
    for _ in range(count):
        led.append_as_leader(RECORD, now_ms=NOW)
        led.log.roll(NOW)
    broker.replicas.checkpoint()
    broker.replicas.withdraw([T0])
    await broker.update(brokers=(OWN,))
    assert await broker.assign(OTHER) is NONE
    return broker.replicas.log_dirs.logs[T0]


async def test_a_log_that_waits_for_a_leader_is_opened_once_and_has_new_settings_and_retention(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await waiting(broker, count=3)
    monkeypatch.delattr("headrace.replication.replica_manager.recover_producers")  # retention may delete what it reads
    broker.config = LogConfig(retention_ms=5)
    run_all(broker.replicas.reconfigure({"t"}))
    assert log.config.retention_ms == 5
    run_all(broker.replicas.apply_retention())
    assert log.log_start_offset == 3
    await broker.update()
    assert await broker.assign(OTHER, 1) is NONE
    assert broker.followed().log is log
    assert await broker.assign(OWN, 2) is NONE
    assert broker.replicas.get("t", 0).log_end_offset == 3


async def test_a_topic_that_was_created_again_gets_no_log_that_waits_for_a_leader(
    broker: Broker, tmp_path: Path
) -> None:
    old = await waiting(broker, count=1)
    assert await broker.assign(OWN, 0, topic_id=UUID(int=6)) is NONE
    led = broker.replicas.get("t", 0)
    assert (led.topic_id, led.log_end_offset, led.log is old) == (UUID(int=6), 0, False)
    assert list(tmp_path.glob("t-0.*-stray"))


async def test_a_state_that_is_not_newer_is_stale(broker: Broker) -> None:
    await broker.assign(OWN, 1)
    for epoch in (0, 1):
        assert await broker.assign(OWN, epoch) is ErrorCode.stale_controller_epoch, epoch
    assert broker.replicas.get("t", 0).leader_epoch == 1


@pytest.mark.parametrize("leader", [OWN, OTHER])
async def test_a_topic_that_was_deleted_and_created_again_gets_a_new_log(
    broker: Broker, tmp_path: Path, leader: int
) -> None:
    """While a broker has no session, no controller tells it to delete its replica."""
    await broker.update(OWN)
    await broker.assign(OWN, 7)
    broker.replicas.get("t", 0).append_as_leader(RECORD, now_ms=NOW)
    assert await broker.assign(leader, 0, topic_id=UUID(int=6)) is NONE
    assert broker.coordinators[1] == ("resigned", T0)
    (hosted,) = broker.replicas.partitions() or broker.replicas.followed()
    assert (hosted.topic_id, hosted.leader_epoch, hosted.log_end_offset) == (UUID(int=6), 0, 0)
    (stray,) = tmp_path.glob("t-0.*-stray")
    assert (stray / "00000000000000000000.log").stat().st_size == len(RECORD)


async def test_a_leader_resigns_when_its_topic_was_created_again_elsewhere(broker: Broker) -> None:
    broker.replicas.exists = lambda partition: broker.cache.image.topic_id_of(partition) is not None
    await broker.update(OWN)
    await broker.assign(OWN, 7)
    await broker.update(OTHER, 0, replicas=[OTHER], topic_id=UUID(int=6))
    assert broker.refusal() is ErrorCode.not_leader_or_follower


async def test_a_partition_of_other_brokers_is_unknown(broker: Broker) -> None:
    assert await broker.assign(OTHER, replicas=[OTHER]) is ErrorCode.unknown_topic_or_partition


async def test_only_valid_names_become_directories(broker: Broker, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    for name, partition in (("../t", 0), ("", 0), ("t\0", 0), (250 * "t", 0), ("t", -1)):
        assert await broker.assign(OWN, name=name, partition=partition) is ErrorCode.invalid_topic_exception, name
    assert set(tmp_path.iterdir()) == before
    assert not (tmp_path.parent / "t-0").exists()


async def test_a_partition_without_a_topic_id_is_inconsistent(broker: Broker, tmp_path: Path) -> None:
    assert await broker.assign(OWN, topic_id=None) is ErrorCode.inconsistent_topic_id
    assert not (tmp_path / "t-0").exists()


async def test_a_partition_without_a_readable_log_has_a_storage_error(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "t-0").write_bytes(b"a file")
    assert await broker.assign(OWN) is ErrorCode.kafka_storage_error
    assert await broker.assign(OWN, 1) is ErrorCode.kafka_storage_error


async def test_a_leader_that_cannot_note_its_epoch_is_offline(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    broker.replicas.peers = Peers(OWN, lambda _: True, lambda: 100, lambda: 1000, NoController())
    monkeypatch.setattr(LeaderEpochs, "assign", is_full)
    assert await broker.assign(OWN) is ErrorCode.kafka_storage_error
    assert broker.refusal() is ErrorCode.kafka_storage_error
    assert broker.coordinators == [("resigned", T0)]


@pytest.mark.parametrize("leader", [OWN, OTHER])
async def test_the_controller_learns_of_a_log_that_could_not_be_flushed_when_it_repeats_the_state(
    broker: Broker, leader: int
) -> None:
    await broker.update()
    await broker.assign(leader, 1)
    (hosted,) = broker.replicas.hosted()
    assert broker.replicas.give_up(hosted, "no space left")
    assert await broker.assign(leader, 1) is ErrorCode.kafka_storage_error


def failing(broker: Broker, directory: Path) -> Callable[[], object]:
    """Return a function for another thread that takes the directory offline."""
    return partial(
        asyncio.get_running_loop().call_soon_threadsafe, broker.replicas.take_offline, directory, "an I/O error"
    )


@pytest.mark.parametrize("leader", [OWN, OTHER])
async def test_a_directory_that_fails_after_a_log_is_opened_takes_the_partition_offline(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, leader: int
) -> None:
    await broker.update()
    monkeypatch.setattr(broker.replicas.log_dirs, "sync_names", failing(broker, tmp_path))
    assert await broker.assign(leader) is ErrorCode.kafka_storage_error
    assert broker.refusal() is ErrorCode.kafka_storage_error


@pytest.mark.parametrize("leader", [OWN, OTHER])
async def test_a_directory_that_fails_during_a_request_takes_its_hosted_partition_offline(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, leader: int
) -> None:
    await broker.update()
    await broker.assign(OTHER if leader == OWN else OWN)
    monkeypatch.setattr(broker.replicas.log_dirs, "sync_names", failing(broker, tmp_path))
    assert await broker.assign(leader, 1) is ErrorCode.kafka_storage_error


async def test_a_follower_whose_directory_fails_during_a_pause_is_not_copied(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def fail(_: Pace) -> None:
        broker.replicas.take_offline(tmp_path, "an I/O error")

    await broker.update()
    monkeypatch.setattr(Pace, "rest", fail)
    await broker.assign(OTHER)
    assert broker.copied == {}


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[Pace]:
    """One item for every pause of requests."""
    rests: list[Pace] = []

    async def rest(pace: Pace) -> None:
        rests.append(pace)

    monkeypatch.setattr(Pace, "rest", rest)
    return rests


async def test_repeated_states_are_refused_in_slices(broker: Broker, rests: list[Pace]) -> None:
    await broker.update()
    await broker.assign(OTHER)
    rests.clear()
    await broker.assign(OTHER)
    read = checked = refused = answered = 1
    assert len(rests) == read + checked + refused + answered


# Stopping


async def test_a_deleted_replica_is_unknown_and_its_files_are_retired(broker: Broker, tmp_path: Path) -> None:
    await broker.assign(OWN, 3)
    assert await broker.stop(DURING_DELETION, delete=True) is NONE
    assert broker.refusal() is ErrorCode.unknown_topic_or_partition
    assert not (tmp_path / "t-0").exists()
    assert [path.name for path in tmp_path.glob("t-0.*-delete")]
    assert broker.coordinators[-1] == ("resigned", T0)


async def test_a_stopped_replica_is_kept_but_copied_no_more(broker: Broker, tmp_path: Path) -> None:
    await broker.update()
    await broker.assign(OTHER, 3)
    assert await broker.stop(3, delete=False) is NONE
    assert broker.copied == {}
    assert (tmp_path / "t-0").exists()


async def test_a_stop_under_an_older_epoch_is_fenced(broker: Broker) -> None:
    await broker.assign(OWN, 3)
    assert await broker.stop(2, delete=True) is ErrorCode.fenced_leader_epoch
    assert isinstance(broker.replicas.get("t", 0), Partition)


async def test_files_that_cannot_be_deleted_are_reported(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KafkaError(ErrorCode.kafka_storage_error, "the directory is read-only")

    await broker.assign(OWN, 3)
    monkeypatch.setattr(broker.replicas.log_dirs, "delete", fail)
    assert await broker.stop(DURING_DELETION, delete=True) is ErrorCode.kafka_storage_error


async def test_replicas_are_stopped_in_slices(broker: Broker, rests: list[Pace]) -> None:
    states = [{"partition_index": index, "leader_epoch": 1, "delete_partition": True} for index in range(1001)]
    topics = [{"topic_name": "t", "partition_states": states}]
    reply = await broker.ask(ApiKey.STOP_REPLICA, 4, {**sender(), "topic_states": topics})
    assert [error.partition_index for error in reply.partition_errors] == list(range(1001))
    assert {error.error_code for error in reply.partition_errors} == {NONE}
    read, stopped = 2, 6
    assert len(rests) == read + stopped


async def test_a_replica_deleted_while_the_broker_was_down_is_deleted(tmp_path: Path) -> None:
    first = Broker(tmp_path)
    await first.assign(OWN, 3)
    first.replicas.close()
    first.executor.shutdown()
    second = Broker(tmp_path)
    assert await second.stop(DURING_DELETION, delete=True) is NONE
    assert not (tmp_path / "t-0").exists()
    second.replicas.close()
    second.executor.shutdown()


# Epochs of the controller and of the broker


async def refused(broker: Broker, **changed: Any) -> set[ErrorCode]:
    """Send all requests, and return their errors."""
    errors = set()
    for ask_it in (broker.update, lambda **fields: broker.assign(OWN, **fields)):
        with pytest.raises(KafkaError) as caught:
            await ask_it(**changed)
        errors.add(caught.value.code)
    with pytest.raises(KafkaError) as caught:
        await broker.stop(DURING_DELETION, delete=True, **changed)
    return {*errors, caught.value.code}


async def test_a_controller_that_was_replaced_is_refused(broker: Broker) -> None:
    await broker.update(controller_epoch=4)
    assert await refused(broker, controller_epoch=3) == {ErrorCode.stale_controller_epoch}


@pytest.mark.parametrize("kind", ["assign", "update"])
async def test_a_controller_that_is_replaced_while_settings_are_read_is_refused(
    kind: str, broker: Broker, tmp_path: Path
) -> None:
    broker.meanwhile = partial(broker.stop, -2, delete=True, controller_epoch=4)
    with raises_code(ErrorCode.stale_controller_epoch):
        await (broker.assign(OWN) if kind == "assign" else broker.update())
    assert not (tmp_path / "t-0").exists()
    assert "t" not in broker.cache.image.topics


async def test_a_request_with_an_earlier_broker_epoch_is_refused_but_not_one_without(broker: Broker) -> None:
    assert await refused(broker, broker_epoch=BROKER_EPOCH - 1) == {ErrorCode.stale_broker_epoch}
    assert await broker.assign(OWN, broker_epoch=-1) is NONE


async def test_a_kraft_controller_is_refused(broker: Broker) -> None:
    assert await refused(broker, is_kraft_controller=True) == {ErrorCode.unsupported_version}


async def test_changes_of_partitions_are_counted_and_logged_with_controller_and_epochs(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    await broker.update()
    await broker.assign(OTHER, 0)
    await broker.assign(OWN, 2, replicas=[OWN, OTHER])
    await broker.assign(OWN, 2)
    await broker.stop(3, delete=True)
    assert (broker.commands.changes.elected, broker.commands.changes.followed) == (1, 1)
    lines = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    issuer = "(controller 1, epoch 3)"
    assert lines == [
        f"Metadata: 1 topic changed, 0 deleted {issuer}",
        (
            "Follower t-0 starts at leader epoch 0 from offset 0 with partition epoch 0 and high watermark 0;"
            f" its leader is 1 {issuer}"
        ),
        (
            "Leader t-0 starts at leader epoch 2 from offset 0 with partition epoch 0, high watermark 0,"
            f" in-sync replicas [4], adding [], removing [] {issuer}"
        ),
        (
            "Ignored the state of t-0 with leader 4, leader epoch 2 and partition epoch 0:"
            f" stale_controller_epoch {issuer}"
        ),
        f"Replica t-0 deleted at leader epoch 3 {issuer}",
    ]


async def test_no_command_is_executed_after_the_broker_has_begun_to_stop(broker: Broker) -> None:
    await broker.update()
    await broker.commands.close()
    late = asyncio.ensure_future(broker.assign(OWN))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not late.done()
    assert not broker.replicas.hosted()
    late.cancel()


async def test_a_stopping_broker_waits_for_the_command_in_progress(broker: Broker) -> None:
    await broker.update()
    current = asyncio.ensure_future(broker.assign(OWN))
    await asyncio.sleep(0)
    await broker.commands.close()
    assert broker.replicas.find(*T0) is not None
    assert await current is NONE


async def test_settings_that_change_while_a_log_is_opened_apply_to_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    real = recover_producers

    def slow(log: Log, high_watermark: int) -> Any:
        began.set()
        assert go_on.wait(30)
        return real(log, high_watermark)

    monkeypatch.setattr("headrace.replication.replica_manager.recover_producers", slow)
    await broker.update()
    assigned = asyncio.create_task(broker.assign(OTHER))
    await asyncio.to_thread(began.wait, 30)
    broker.config = LogConfig(retention_ms=5)
    run_all(broker.replicas.reconfigure({"t"}))
    go_on.set()
    assert await assigned is NONE
    assert broker.followed().log.config.retention_ms == 5


async def resigned(broker: Broker) -> Log:
    """Lead the partition with a record, and resign because it was moved while there was no session."""
    broker.replicas.exists = lambda partition: broker.cache.image.topic_id_of(partition) is not None
    await broker.update(OWN)
    await broker.assign(OWN)
    led = broker.replicas.get("t", 0)
    led.append_as_leader(RECORD, now_ms=NOW)
    await broker.update(OTHER, 1, replicas=[OTHER])
    return led.log


async def test_new_settings_apply_to_a_kept_log_that_is_used_again(broker: Broker) -> None:
    log = await resigned(broker)
    broker.config = LogConfig(retention_ms=5)
    run_all(broker.replicas.reconfigure({"t"}))
    assert await broker.assign(OTHER, 2) is NONE
    assert broker.followed().log is log
    assert log.config.retention_ms == 5


@pytest.mark.parametrize("leader", [OWN, OTHER])
async def test_a_topic_created_again_does_not_get_the_kept_log_of_the_deleted_one(broker: Broker, leader: int) -> None:
    log = await resigned(broker)
    new = UUID(int=TOPIC_ID.int + 1)
    await broker.update(OTHER, 0, topic_id=new)
    assert await broker.assign(leader, 2, topic_id=new) is NONE
    (hosted,) = broker.replicas.hosted()
    assert (hosted.topic_id, hosted.log_end_offset) == (new, 0)
    assert hosted.log is not log


async def test_a_log_that_waits_for_a_leader_is_closed_with_its_producers(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.config = LogConfig(retention_ms=5)
    broker.replicas.become_leader(T0, TOPIC_ID, 0)
    led = broker.replicas.get("t", 0)
    batch = build_batch([RecordData(None, b"v", 1)], producer_id=7, producer_epoch=3, base_sequence=0)
    led.append_as_leader(batch, now_ms=NOW)
    broker.replicas.checkpoint()
    broker.replicas.withdraw([T0])
    await broker.update(brokers=(OWN,))
    assert await broker.assign(OTHER) is NONE
    run_all(broker.replicas.apply_retention())
    broker.replicas.close()
    broker.executor.shutdown()

    again = Broker(tmp_path)
    again.replicas.become_leader(T0, TOPIC_ID, 1, is_new=False)
    assert len(again.replicas.get("t", 0).producers) == 1
    again.replicas.close()
    again.executor.shutdown()
