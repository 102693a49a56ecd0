import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.clock import Clock
from headrace.coordinator.transaction_coordinator import TransactionCoordinator, TransactionSettings
from headrace.coordinator.transactions.machine import NeedsProducerIdError, WriteMarkers
from headrace.coordinator.transactions.states import ProducerIdentity, TransactionState
from headrace.errors import ErrorCode, KafkaError
from headrace.slices import finish
from headrace.types import Buffer, TopicPartition
from tests.simulation.clock import VirtualLoop, virtual_clock
from tests.unit.coordinator.world import refusal

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TIMEOUT_MS = 1000


class MemoryLog:
    """A log that commits at once, or when `waiting` completes."""

    coordinator_epoch = 3

    def __init__(self) -> None:
        self.content: list[bytes] = []
        self.waiting: asyncio.Future[KafkaError | None] | None = None

    def append(self, batch: bytes, now_ms: int) -> int:
        self.content.append(batch)
        return len(self.content) - 1

    def batches(self) -> Iterator[Buffer]:
        yield from self.content

    def committed(self) -> "asyncio.Future[KafkaError | None] | None":
        return self.waiting


class Markers:
    """Records written markers, or raises the error of the partition."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.takes_s = 0.0
        self.written: list[tuple[TopicPartition, bool, int]] = []
        self.errors: dict[TopicPartition, ErrorCode] = {}

    def write(self, partition: TopicPartition, markers: WriteMarkers, coordinator_epoch: int) -> None:
        self._loop.now += self.takes_s
        if partition in self.errors:
            raise KafkaError(self.errors[partition])
        self.written.append((partition, markers.commit, coordinator_epoch))


class World:
    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.log = MemoryLog()
        self.markers = Markers(self.loop)
        self.ids: list[int] = [7]
        self.coordinator = self.start()

    def start(self, **settings: Any) -> TransactionCoordinator:
        clock: Clock = virtual_clock(self.loop)
        coordinator = TransactionCoordinator(
            TransactionSettings(partition_count=1, **settings),
            self.loop.as_loop(),
            self.markers,
            version=lambda: 2,
            take_producer_id=lambda: self.ids.pop() if self.ids else None,
            clock=clock,
        )
        coordinator.elected(0, self.log)
        self.loop.run_until(self.loop.now)
        return coordinator

    def begin(self, *partitions: TopicPartition) -> ProducerIdentity:
        producer = self.coordinator.init_producer_id("id", None, TIMEOUT_MS)
        self.coordinator.add_partitions("id", producer, frozenset(partitions), client_version=2)
        return producer

    def end(self, producer: ProducerIdentity, *, commit: bool = True) -> ProducerIdentity:
        return self.coordinator.end("id", producer, commit=commit, client_version=2)

    def pass_time(self, seconds: float) -> None:
        self.loop.run_until(self.loop.now + seconds)

    def state(self) -> TransactionState:
        return self.coordinator.describe("id").state


@pytest.fixture
def world() -> World:
    return World()


def test_markers_go_to_all_partitions(world: World) -> None:
    producer = world.begin(T0, T1)
    assert world.end(producer) == (7, 1)
    assert world.markers.written == []  # the reply goes first
    world.pass_time(0)
    assert world.markers.written == [(T0, True, 3), (T1, True, 3)]
    assert world.state() is TransactionState.COMPLETE_COMMIT


def test_a_producer_need_not_wait_for_the_markers_of_its_last_transaction(world: World) -> None:
    producer = world.begin(T0, T1)
    producer = world.end(producer)
    world.coordinator.add_partitions("id", producer, frozenset({T0}), client_version=2)
    assert world.markers.written == [(T0, True, 3), (T1, True, 3)]
    assert world.state() is TransactionState.ONGOING
    world.pass_time(0)
    assert world.markers.written == [(T0, True, 3), (T1, True, 3)]


def test_a_producer_waits_for_the_markers_of_a_large_transaction(world: World) -> None:
    producer = world.begin(*(TopicPartition("t", index) for index in range(100)))
    producer = world.end(producer)
    with pytest.raises(KafkaError, match="concurrent_transactions"):
        world.coordinator.add_partitions("id", producer, frozenset({T0}), client_version=2)


def test_a_failed_marker_is_retried_and_its_partition_described_until_then(world: World) -> None:
    producer = world.begin(T0, T1)
    world.markers.errors = {T0: ErrorCode.kafka_storage_error}
    world.end(producer, commit=False)
    assert world.coordinator.describe("id").partitions == {T0, T1}
    world.pass_time(0)
    assert world.coordinator.describe("id").partitions == {T0}
    assert world.state() is TransactionState.PREPARE_ABORT
    world.markers.errors = {}
    world.pass_time(1)
    assert world.markers.written == [(T1, False, 3), (T0, False, 3)]
    assert world.coordinator.describe("id").partitions == set()
    assert world.state() is TransactionState.COMPLETE_ABORT


def test_a_deleted_partition_needs_no_marker(world: World) -> None:
    producer = world.begin(T0)
    world.markers.errors = {T0: ErrorCode.unknown_topic_or_partition}
    world.end(producer)
    world.pass_time(0)
    assert world.state() is TransactionState.COMPLETE_COMMIT


@pytest.mark.parametrize(
    ("refusing", "other", "error"),
    [(T0, T1, ErrorCode.invalid_producer_epoch), (T1, T0, ErrorCode.transaction_coordinator_fenced)],
)
def test_a_fenced_marker_leaves_the_transaction_prepared_but_others_are_written(
    world: World, refusing: TopicPartition, other: TopicPartition, error: ErrorCode
) -> None:
    producer = world.begin(T0, T1)
    world.markers.errors[refusing] = error
    world.end(producer)
    world.pass_time(10)
    assert [partition for partition, *_ in world.markers.written] == [other]
    assert world.coordinator.describe("id").partitions == {refusing}
    assert world.state() is TransactionState.PREPARE_COMMIT


async def test_a_decision_that_could_not_be_committed_at_first_has_markers_later(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    producer = world.begin(T0)
    world.log.waiting = failed = asyncio.get_running_loop().create_future()
    world.end(producer)
    failed.set_result(KafkaError(ErrorCode.not_enough_replicas_after_append))
    await asyncio.sleep(0)
    world.pass_time(0)
    world.log.waiting = second = asyncio.get_running_loop().create_future()
    world.pass_time(1)
    assert (world.markers.written, world.state()) == ([], TransactionState.PREPARE_COMMIT)
    second.set_result(None)
    await asyncio.sleep(0)
    world.pass_time(0)
    assert world.markers.written == [(T0, True, 3)]
    assert world.state() is TransactionState.COMPLETE_COMMIT
    assert "Cannot commit the end of the transaction for transactional id id" in caplog.text


async def test_a_lost_decision_writes_no_markers(world: World) -> None:
    producer = world.begin(T0)
    world.log.waiting = failed = asyncio.get_running_loop().create_future()
    world.end(producer)
    failed.set_result(KafkaError(ErrorCode.kafka_storage_error))
    await asyncio.sleep(0)
    world.coordinator.resigned(0)
    world.log.waiting = None
    world.pass_time(1)
    assert world.markers.written == []


def test_the_remaining_markers_are_written_after_a_restart_and_not_by_the_closed_coordinator(world: World) -> None:
    producer = world.begin(T0)
    world.markers.errors = {T0: ErrorCode.kafka_storage_error}
    world.end(producer)
    world.coordinator.close()
    world.markers.errors = {}
    world.pass_time(10)
    assert world.markers.written == []
    world.coordinator = world.start()
    assert world.markers.written == [(T0, True, 3)]
    assert world.state() is TransactionState.COMPLETE_COMMIT


def test_a_timed_out_transaction_is_aborted(world: World) -> None:
    world.begin(T0)
    list(world.coordinator.abort_timed_out())
    assert world.state() is TransactionState.ONGOING
    world.pass_time(2)
    list(world.coordinator.abort_timed_out())
    world.pass_time(0)
    assert world.state() is TransactionState.COMPLETE_ABORT
    assert world.coordinator.describe("id").producer_epoch == 1


def test_a_timed_out_transaction_is_logged_with_its_client(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.begin(T0)
    world.coordinator.note_client("id", "billing at 10.0.0.7")
    # Its client is remembered when another partition is resigned.
    world.coordinator.elected(1, MemoryLog())
    world.coordinator.resigned(1)
    world.pass_time(2)
    list(world.coordinator.abort_timed_out())
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "transactional id id (client billing at 10.0.0.7, producer " in line


async def test_idle_ids_are_forgotten(world: World) -> None:
    world.coordinator.init_producer_id("id", None, TIMEOUT_MS)
    world.coordinator.settings.id_expiration_ms = 5000
    await finish(world.coordinator.forget_expired())
    world.pass_time(6)
    await finish(world.coordinator.forget_expired())
    assert refusal(world.coordinator.describe, "id") is ErrorCode.transactional_id_not_found


def test_nothing_is_decided_without_a_producer_id(world: World) -> None:
    world.ids = []
    with pytest.raises(NeedsProducerIdError):
        world.coordinator.init_producer_id("id", None, TIMEOUT_MS)
    assert world.log.content == []


def test_a_timeout_outside_the_limits_is_refused(world: World) -> None:
    init = world.coordinator.init_producer_id
    for timeout_ms in (-1, 0, 900_001):
        assert refusal(init, "id", None, timeout_ms) is ErrorCode.invalid_transaction_timeout, timeout_ms


def test_two_phase_commit_must_be_enabled(world: World) -> None:
    init, request = world.coordinator.init_producer_id, ("id", None, TIMEOUT_MS)
    assert refusal(init, *request, has_two_phases=True) is ErrorCode.transactional_id_authorization_failed
    world.coordinator.settings.has_two_phase_commit = True
    init(*request, has_two_phases=True)
    assert world.coordinator.describe("id").timeout_ms == 2**31 - 1


def test_markers_are_written_in_slices(world: World) -> None:
    producer = world.begin(*(TopicPartition("t", number) for number in range(10)))
    world.markers.takes_s = 0.0004
    world.end(producer)
    world.pass_time(0)
    assert len(world.markers.written) == 3
    world.pass_time(1)
    assert world.state() is TransactionState.COMPLETE_COMMIT


def test_transactions_take_turns(world: World) -> None:
    large = world.begin(*(TopicPartition("t", number) for number in range(10)))
    world.ids.append(8)
    small = world.coordinator.init_producer_id("small", None, TIMEOUT_MS)
    world.coordinator.add_partitions("small", small, frozenset({T0}), client_version=2)
    world.markers.takes_s = 0.002
    world.end(large)
    world.coordinator.end("small", small, commit=False, client_version=2)
    world.pass_time(0.008)
    assert world.coordinator.describe("small").state is TransactionState.COMPLETE_ABORT
    assert world.state() is TransactionState.PREPARE_COMMIT
