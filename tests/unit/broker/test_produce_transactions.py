"""Verification of transactional batches with the coordinator."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.apis.produce import ProduceApi
from headrace.broker.apis.produce_transactions import TransactionVerification
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode
from headrace.replication.purgatory import Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.batch import TRANSACTIONAL_FLAG
from headrace.wire.records import RecordData, build_batch
from tests.unit.broker.asking import ask, produce_fields
from tests.unit.broker.fake_coordinator import Coordinator

NOW = 1_700_000_000_000
VERSION_1, VERSION_2 = 11, 12


class Broker:
    """A broker with two partitions and a coordinator."""

    def __init__(self, directory: Path) -> None:
        self.purgatory = Purgatory(asyncio.get_running_loop())
        self.replicas = ReplicaManager(LogDirs.open([directory], broker_id=0), lambda _: LogConfig(), self.purgatory)
        self.partitions = [
            self.replicas.become_leader(TopicPartition("t", index), UUID(int=5), 0) for index in range(2)
        ]
        self.coordinator = Coordinator()
        self.config = BrokerConfig()
        verification = TransactionVerification(self.replicas, lambda _: "t", self.coordinator, self.config)
        self.api = ProduceApi(self.replicas, lambda _: "t", self.purgatory, verification)
        self.routes: dict[ApiKey, Any] = {ApiKey.PRODUCE: self.api.produce}

    async def produce(
        self, *batches: bytes, version: int = VERSION_2, transactional_id: str | None = "x"
    ) -> list[ErrorCode]:
        """Produce one batch to every partition, and return their errors."""
        fields = produce_fields(dict(enumerate(batches)), timeout_ms=1000, transactional_id=transactional_id)
        response = await ask(self.routes, ApiKey.PRODUCE, version, fields)
        return [ErrorCode(item.error_code) for item in response.responses[0].partition_responses]


@pytest.fixture
async def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


@pytest.fixture(autouse=True)
async def closed(broker: Broker) -> object:
    yield
    broker.purgatory.close()
    broker.replicas.close()


def batch(sequence: int = 0, *, producer: int = 4, transactional: bool = True) -> bytes:
    return build_batch(
        [RecordData(b"k", b"v", NOW)],
        producer_id=producer,
        producer_epoch=3,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_FLAG if transactional else 0,
    )


@pytest.fixture(params=[False, True], ids=["at once", "later"])
def either(request: pytest.FixtureRequest, broker: Broker) -> Broker:
    broker.coordinator.is_slow = request.param
    return broker


async def test_one_call_verifies_all_partitions(either: Broker) -> None:
    assert await either.produce(batch(), batch()) == [ErrorCode.none, ErrorCode.none]
    assert either.coordinator.calls == [("x", 4, 3, ["t-0", "t-1"], True)]


async def test_open_transactions_are_not_verified_again(broker: Broker) -> None:
    await broker.produce(batch())
    assert await broker.produce(batch(1), batch()) == [ErrorCode.none, ErrorCode.none]
    assert [partitions for _, _, _, partitions, _ in broker.coordinator.calls] == [["t-0"], ["t-1"]]


async def test_partitions_of_a_version_1_producer_are_only_verified(broker: Broker) -> None:
    await broker.produce(batch(), version=VERSION_1)
    assert broker.coordinator.calls == [("x", 4, 3, ["t-0"], False)]


async def test_coordinator_errors_are_converted_for_the_producer(either: Broker) -> None:
    expected = {
        (ErrorCode.invalid_txn_state, VERSION_1): ErrorCode.invalid_txn_state,
        (ErrorCode.producer_fenced, VERSION_1): ErrorCode.invalid_producer_epoch,
        (ErrorCode.invalid_producer_id_mapping, VERSION_1): ErrorCode.invalid_producer_id_mapping,
        (ErrorCode.transaction_abortable, 10): ErrorCode.invalid_txn_state,
        (ErrorCode.transaction_abortable, VERSION_1): ErrorCode.transaction_abortable,
        (ErrorCode.concurrent_transactions, VERSION_1): ErrorCode.not_enough_replicas,
        (ErrorCode.coordinator_not_available, VERSION_1): ErrorCode.not_enough_replicas,
        (ErrorCode.not_coordinator, VERSION_2): ErrorCode.not_enough_replicas,
        (ErrorCode.coordinator_load_in_progress, VERSION_2): ErrorCode.not_enough_replicas,
    }
    returned = {}
    for code, version in expected:
        either.coordinator.results = [code]
        [returned[code, version]] = await either.produce(batch(), version=version)
    assert returned == expected
    assert either.partitions[0].log_end_offset == 0


async def test_a_batch_waits_for_the_end_of_the_previous_transaction(broker: Broker) -> None:
    broker.config.add_partitions_to_txn_retry_backoff_ms = 1
    broker.config.add_partitions_to_txn_retry_backoff_max_ms = 60_000
    broker.coordinator.results = [ErrorCode.concurrent_transactions] * 3
    assert await broker.produce(batch()) == [ErrorCode.none]
    assert len(broker.coordinator.calls) == 4


async def test_waiting_for_the_previous_transaction_has_a_limit(broker: Broker) -> None:
    broker.config.add_partitions_to_txn_retry_backoff_ms = 1
    broker.config.add_partitions_to_txn_retry_backoff_max_ms = 5
    broker.coordinator.results = [ErrorCode.concurrent_transactions] * 1000
    assert await broker.produce(batch()) == [ErrorCode.concurrent_transactions]


async def test_a_marker_written_during_verification_wins(broker: Broker) -> None:
    broker.coordinator.is_slow = True
    response = asyncio.ensure_future(broker.produce(batch()))
    await broker.coordinator.called.wait()
    broker.partitions[0].append_marker(4, 3, commit=False, coordinator_epoch=0, now_ms=NOW)
    assert await response == [ErrorCode.invalid_txn_state]


async def test_a_request_without_one_transactional_producer_is_refused_as_a_whole(broker: Broker) -> None:
    plain = batch(transactional=False)
    nameless = ErrorCode.transactional_id_authorization_failed
    assert await broker.produce(plain, batch(), transactional_id=None) == [nameless, nameless]
    assert broker.partitions[0].log_end_offset == 0
    several = ErrorCode.invalid_producer_id_mapping
    assert await broker.produce(batch(), batch(producer=5)) == [several, several]


async def test_batches_without_a_transaction_are_not_verified(broker: Broker) -> None:
    assert await broker.produce(batch(producer=-1)) == [ErrorCode.invalid_record]
    assert await broker.produce(batch(transactional=False)) == [ErrorCode.none]
    assert broker.coordinator.calls == []


async def test_without_verification_only_partitions_of_version_2_producers_are_added(broker: Broker) -> None:
    broker.config.transaction_partition_verification_enable = False
    assert await broker.produce(batch(), version=VERSION_1) == [ErrorCode.none]
    assert broker.coordinator.calls == []
    assert await broker.produce(batch(producer=5)) == [ErrorCode.none]
    assert broker.coordinator.calls == [("x", 5, 3, ["t-0"], True)]


async def test_requests_of_many_partitions_are_verified_too(broker: Broker) -> None:
    broker.routes[ApiKey.PRODUCE] = lambda context, request: _first(broker.api.produce_many([(context, request)]))
    assert await broker.produce(batch(), batch()) == [ErrorCode.none, ErrorCode.none]
    assert len(broker.coordinator.calls) == 1


async def _first(replies: Any) -> Any:
    [reply] = await replies
    return reply
