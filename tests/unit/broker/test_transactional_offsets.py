"""TxnOffsetCommit and WriteTxnMarkers while coordinators and partitions move between brokers."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.apis.transactions.offsets import TransactionalOffsetsApi
from headrace.broker.coordinators.offsets_topic import NAME, OffsetsTopicLog
from headrace.broker.coordinators.transactions import Transactions
from headrace.cluster.commands import UpdateMetadata
from headrace.cluster.image import PartitionImage, TopicImage
from headrace.cluster.metadata_cache import MetadataCache
from headrace.config import BrokerConfig
from headrace.coordinator.group_coordinator import GroupCoordinator
from headrace.coordinator.groups.settings import GroupSettings
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.purgatory import Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.verification import Verified
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.types import PartitionState, TopicPartition
from headrace.wire.apis import ApiKey
from tests.unit.broker.asking import ask
from tests.unit.coordinator.fake_topics import FakeTopics

OFFSETS = TopicPartition(NAME, 0)
OTHER = 7


class Broker:
    """Leads the only partition of `__consumer_offsets`, and is the coordinator of its groups."""

    def __init__(self, directory: Path) -> None:
        loop = asyncio.get_running_loop()
        self.purgatory = Purgatory(loop)
        self.config = LogConfig()
        self.replicas = ReplicaManager(LogDirs.open([directory], broker_id=0), lambda _: self.config, self.purgatory)
        self.topics = FakeTopics(t=2)
        self.groups = GroupCoordinator(GroupSettings(offsets_topic_num_partitions=1), loop, self.topics)
        self.partition = self.replicas.become_leader(OFFSETS, UUID(int=5), 0)
        self.groups.elected(0, OffsetsTopicLog(self.partition))
        self.verified = ErrorCode.none
        self.meanwhile: Callable[[], None] = lambda: None
        """Called while the transaction is being verified."""
        api = TransactionalOffsetsApi(
            lambda: self.groups,
            self.topics,
            self,
            self.replicas,
            self.purgatory,
            lambda _: 1,
            lambda _: 0,
            lambda: True,
        )
        self.routes: dict[ApiKey, Any] = api.routes()

    async def verify(
        self,
        name: str,
        producer_id: int,
        epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
        client: str,
    ) -> Verified:
        self.meanwhile()
        return dict.fromkeys(partitions, self.verified)

    def move_away(self) -> None:
        self.replicas.follow(state(leader=OTHER, epoch=1))
        self.groups.resigned(0)

    def move_back(self) -> None:
        self.groups.elected(0, OffsetsTopicLog(self.replicas.lead(state(leader=0, epoch=2))))

    async def commit(self) -> ErrorCode:
        partition = {
            "partition_index": 0,
            "committed_offset": 3,
            "committed_leader_epoch": -1,
            "committed_metadata": None,
        }
        fields = {
            "transactional_id": "x",
            "group_id": "g",
            "producer_id": 4,
            "producer_epoch": 0,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": "t", "partitions": [partition]}],
        }
        answer = await ask(self.routes, ApiKey.TXN_OFFSET_COMMIT, 4, fields)
        return ErrorCode(answer.topics[0].partitions[0].error_code)


def state(*, leader: int, epoch: int) -> PartitionState:
    return PartitionState(NAME, UUID(int=5), 0, leader, epoch, (OTHER, 0), (OTHER, 0), is_new=False)


@pytest.fixture
async def broker(tmp_path: Path) -> Any:
    broker = Broker(tmp_path)
    yield broker
    broker.groups.close()
    broker.purgatory.close()
    broker.replicas.close()


async def test_offsets_are_committed_in_a_verified_transaction(broker: Broker) -> None:
    assert await broker.commit() is ErrorCode.none
    assert broker.partition.log_end_offset == 1


async def test_clients_can_retry_when_the_other_coordinator_does_not_verify(broker: Broker) -> None:
    for verified, answer in (
        (ErrorCode.network_exception, ErrorCode.coordinator_load_in_progress),
        (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available),
        (ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available),
    ):
        broker.verified = verified
        assert await broker.commit() is answer, verified


async def test_clients_can_retry_below_min_isr(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise KafkaError(ErrorCode.not_enough_replicas)

    monkeypatch.setattr(type(broker.partition), "append_own", refuse)
    assert await broker.commit() is ErrorCode.coordinator_not_available


async def test_a_group_that_moves_away_during_the_verification_gets_no_offsets(broker: Broker) -> None:
    broker.meanwhile = broker.move_away
    assert await broker.commit() is ErrorCode.not_coordinator
    assert broker.partition.log_end_offset == 0


async def test_a_group_that_comes_back_during_the_verification_gets_no_offsets_of_the_old_epoch(broker: Broker) -> None:
    def meanwhile() -> None:
        broker.move_away()
        broker.move_back()

    broker.meanwhile = meanwhile
    assert await broker.commit() is ErrorCode.not_coordinator
    assert broker.partition.log_end_offset == 0


class Others:
    """The other brokers, to which no marker may be passed on."""

    def write_marker(self, *_: object) -> Any:
        raise AssertionError("the marker was passed on")


async def test_a_marker_of_another_broker_is_not_passed_on(broker: Broker) -> None:
    nothing: Any = None
    cache = MetadataCache()
    elsewhere = TopicImage("t", UUID(int=6), (PartitionImage(OTHER, 0, (OTHER,), (OTHER,)),))
    await cache.apply(UpdateMetadata(OTHER, 1, [], [elsewhere]))
    broker.replicas.exists = lambda _: True
    others: Any = Others()
    groups: Any = SimpleNamespace(coordinator=nothing, topic_table=broker.topics, transaction_ended=nothing)
    producer_ids: Any = SimpleNamespace(take=lambda: None, refill=nothing)
    transactions = Transactions(
        BrokerConfig(),
        cache,
        nothing,
        broker.replicas,
        broker.purgatory,
        loop=asyncio.get_running_loop(),
        groups=groups,
        producer_ids=producer_ids,
        version=lambda: 0,
        others=others,
    )
    marker = {
        "producer_id": 4,
        "producer_epoch": 0,
        "transaction_result": True,
        "topics": [{"name": "t", "partition_indexes": [0]}],
        "coordinator_epoch": 1,
    }
    answer = await ask(transactions.routes(), ApiKey.WRITE_TXN_MARKERS, 1, {"markers": [marker]})
    assert answer.markers[0].topics[0].partitions[0].error_code is ErrorCode.not_leader_or_follower
    await transactions.stop()
