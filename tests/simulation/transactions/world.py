"""A simulated cluster with transactions: the real coordinator, partitions, and producers.

`play` returns the first broken promise (KIP-98, KIP-890):

- A transaction is committed in all of its partitions or in none, consistent with the answer to its producer.
- No record of a transaction follows its marker, and no marker ends two transactions.
- A transactional id has one writer: its predecessors are fenced, and no other producer gets its id and epoch.
- At every reload, the log agrees with the coordinator's memory.
- After the faults, every transaction ends: none stays open longer than its timeout, and no marker is missing.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.coordinator.transaction_coordinator import TransactionCoordinator, TransactionSettings
from headrace.coordinator.transactions.machine import NeedsProducerIdError, WriteMarkers
from headrace.coordinator.transactions.shard import TransactionShard
from headrace.coordinator.transactions.states import (
    MAX_EPOCH,
    NO_EPOCH,
    ProducerIdentity,
    TransactionMetadata,
    TransactionState,
)
from headrace.errors import ErrorCode, KafkaError
from headrace.types import TopicPartition
from headrace.wire.compression import Codec
from headrace.wire.records import plain_batch
from tests.simulation import acts
from tests.simulation.acts import Act
from tests.simulation.clock import VirtualLoop, virtual_clock
from tests.simulation.transactions.history import FAULTS_S, History
from tests.simulation.transactions.partitions import Entry, Partition, StateLog
from tests.simulation.transactions.producer import TIMED_OUT, Process, Producer

TIMEOUT_MS: Final = 5000
ABORT_INTERVAL_S: Final = 1.0
"""Interval of the coordinator's search for expired transactions."""
REQUEST_TIMEOUT_S: Final = 2.0
SETTLE_S: Final = 15.0
_IDS: Final = ("a", "b")


class ViolationError(AssertionError):
    """A promise was broken."""


@dataclass
class Transaction:
    """A transaction as observed from outside."""

    owner: Producer
    version: int
    intent: bool | None = None
    reported: bool | None = None
    outcomes: dict[TopicPartition, bool] = field(default_factory=dict)
    acknowledged: list[tuple[TopicPartition, int]] = field(default_factory=list)


class World:
    """A simulated cluster. Events are appended to `trace` as text."""

    def __init__(self, history: History, trace: list[str] | None = None) -> None:
        self.history = history
        self.loop = VirtualLoop()
        self.clock = virtual_clock(self.loop)
        self.random = random.Random(f"world {history.seed}")
        self.level = history.level
        self._trace = trace
        self.is_faulty = True
        self.names = [TopicPartition("t", index) for index in range(3)]
        self.partitions = {name: Partition(name, self.loop, self._commit_delay, self._ended) for name in self.names}
        self.log = StateLog(self.loop, self._commit_delay)
        self.transactions: list[Transaction] = []
        self.added_late: set[ProducerIdentity] = set()
        """Producers of version 1 whose partitions were added by timed-out requests."""
        self.newest: dict[str, Producer] = {}
        """The latest instance of every id, as the coordinator sees it."""
        self._owners: dict[tuple[str, ProducerIdentity], Producer] = {}
        self._numbers = 0
        self._producers: dict[str, list[Producer]] = {name: [] for name in _IDS}
        self._next_id = 1000
        self.coordinator: TransactionCoordinator | None = None
        self._generation = 0

    # Running

    def run(self) -> None:
        self._create_initial_ids()
        self._start()
        for act in self.history.acts:
            self.loop.call_at(1000 + act.at, self._act, act)
        self.loop.call_later(ABORT_INTERVAL_S, self._abort_timed_out)
        self.loop.run_until(1000 + FAULTS_S)
        self._stop_faults()
        self.loop.run_until(self.loop.now + SETTLE_S)
        self._check_settled()
        self._restart(compare=True)

    def note(self, text: str) -> None:
        if self._trace is not None:
            self._trace.append(f"{self.loop.now - 1000:7.3f} s  {text}")

    def _create_initial_ids(self) -> None:
        """Create ids whose epochs are nearly used up, in some histories."""
        if self.history.epochs_left is not None:
            shard = TransactionShard(lambda: self.level)
            for index, name in enumerate(_IDS):
                metadata = TransactionMetadata(
                    index,
                    MAX_EPOCH - 1 - self.history.epochs_left,
                    TIMEOUT_MS,
                    last_update_ms=self.clock.wall_ms(),
                    previous_producer_id=index,
                )
                self.log.append(plain_batch([shard.encode(name, metadata)], 0, Codec.NONE), 0)

    def _start(self) -> None:
        self._generation += 1
        settings = TransactionSettings(partition_count=1)
        world = self

        class Writer:
            def write(self, partition: TopicPartition, markers: WriteMarkers, coordinator_epoch: int) -> Any:
                return world.partitions[partition].mark(markers)

        self.coordinator = TransactionCoordinator(
            settings,
            self.loop.as_loop(),
            Writer(),
            version=lambda: self.level,
            take_producer_id=self._take_id,
            clock=self.clock,
        )
        self.coordinator.elected(0, self.log)

    def _take_id(self) -> int | None:
        if self.is_faulty and self.random.random() < 0.2:
            return None
        self._next_id += 1
        return self._next_id

    def _commit_delay(self) -> float:
        if not self.is_faulty or self.random.random() < 0.7:
            return 0.0
        return self.random.uniform(0.001, 1.0)

    def _abort_timed_out(self) -> None:
        if self.coordinator is not None:
            for _ in self.coordinator.abort_timed_out():
                pass
        self.loop.call_later(ABORT_INTERVAL_S, self._abort_timed_out)

    # Faults

    def _act(self, act: Act) -> None:
        self.note(str(act))
        getattr(self, f"_do_{act.kind}")(*act.arguments)

    def _do_start(self, name: str, supports_version_2: bool) -> None:
        self._numbers += 1
        producer = Producer(self, name, self._numbers, supports_version_2)
        self._producers[name].append(producer)
        self._step(producer, producer.run(), None)

    def _do_crash(self, name: str) -> None:
        for producer in self._producers[name][-1:]:
            producer.is_alive = False

    def _do_pause(self, name: str, duration: float) -> None:
        for producer in self._producers[name][-1:]:
            producer.paused_until = self.loop.now + duration

    def _do_restart(self, duration: float, loses_data: bool, with_producers: bool) -> None:
        if self.coordinator is None:
            return
        if with_producers:
            self._kill_producers()
        if loses_data:
            self.coordinator.close()
            self.coordinator = None
            self.log.lose()
            for partition in self.partitions.values():
                partition.lose()
        else:
            self._restart(compare=True)
            if self.coordinator is not None:
                self.coordinator.close()
            self.coordinator = None
        self.loop.call_later(duration, self._start_if_down)

    def _do_refuse(self, duration: float) -> None:
        self.log.refusal = ErrorCode.not_enough_replicas
        self.loop.call_later(duration, setattr, self.log, "refusal", None)

    def _do_refuse_markers(self, index: int, duration: float) -> None:
        partition = self.partitions[self.names[index]]
        partition.refusal = ErrorCode.kafka_storage_error
        self.loop.call_later(duration, setattr, partition, "refusal", None)

    def _do_level(self, level: int) -> None:
        self.level = level

    def _start_if_down(self) -> None:
        if self.coordinator is None:
            self._start()

    def _restart(self, *, compare: bool) -> None:
        """Reload the log, after comparing it with the coordinator's memory."""
        assert self.coordinator is not None
        if compare:
            shard = TransactionShard(lambda: self.level)
            for batch in self.log.content:
                _replay(shard, batch)
            before = dict(self.coordinator.all())
            if _comparable(before) != _comparable(shard.ids):
                raise ViolationError(f"the log and the memory differ: {before} {shard.ids}")
        self.coordinator.close()
        self._start()

    def _stop_faults(self) -> None:
        self.is_faulty = False
        self.log.refusal = None
        for partition in self.partitions.values():
            partition.refusal = None
        self._kill_producers()
        self._start_if_down()

    def _kill_producers(self) -> None:
        for producers in self._producers.values():
            for producer in producers:
                producer.is_alive = False

    # Requests

    def _step(self, producer: Producer, process: Process, answer: Any) -> None:
        if not producer.is_alive:
            return
        if producer.paused_until > self.loop.now:
            self.loop.call_at(producer.paused_until, self._step, producer, process, answer)
            return
        try:
            request = process.send(answer)
        except StopIteration:
            return
        if request[0] == "sleep":
            self.loop.call_later(request[1], self._step, producer, process, None)
        else:
            _Exchange(self, producer, process, request)

    def serve(self, producer: Producer, kind: str, arguments: Sequence[Any]) -> tuple[Any, Any]:
        """Return an answer and the future that it waits for. Raises KafkaError."""
        coordinator = self.coordinator
        if coordinator is None:
            raise KafkaError(ErrorCode.not_coordinator)
        if kind == "produce":
            return self._produce(coordinator, producer, *arguments)
        try:
            answer = self._ask(coordinator, producer, kind, arguments)
        except NeedsProducerIdError:
            raise KafkaError(ErrorCode.coordinator_not_available) from None
        return answer, coordinator.committed(producer.name)

    def _ask(self, coordinator: TransactionCoordinator, producer: Producer, kind: str, arguments: Sequence[Any]) -> Any:
        name = producer.name
        if kind == "init":
            return coordinator.init_producer_id(name, arguments[0], TIMEOUT_MS)
        if kind == "add":
            identity, partition = arguments
            return coordinator.add_partitions(name, identity, frozenset({partition}), client_version=0)
        identity, commit, version = arguments
        return coordinator.end(name, identity, commit=commit, client_version=version)

    def _produce(
        self,
        coordinator: TransactionCoordinator,
        producer: Producer,
        identity: ProducerIdentity,
        name: TopicPartition,
        tag: int,
        sequence: int,
        version: int,
    ) -> tuple[Any, Any]:
        partition = self.partitions[name]
        guard = partition.needs_verification(identity)
        entry = Entry(identity, tag, sequence)
        if guard is None:
            return self._appended(producer, partition, entry, None)
        if version >= 2:
            coordinator.add_partitions(producer.name, identity, frozenset({name}), client_version=2)
            waiting = coordinator.committed(producer.name)
        else:
            code = coordinator.verify(producer.name, identity, frozenset({name}))[name]
            if code is not ErrorCode.none:
                raise KafkaError(code)
            waiting = None
        if waiting is None and self.random.random() < 0.5:
            return self._appended(producer, partition, entry, guard)
        # anything may happen between the verification and the append
        answer = _PendingAnswer()
        append = lambda *_: answer.resolve(lambda: self._appended(producer, partition, entry, guard))  # noqa: E731
        if waiting is None:
            self.loop.call_later(self.random.uniform(0.0, 3.0), append)
        else:
            waiting.add_done_callback(append)
        return answer, None

    def _appended(
        self, producer: Producer, partition: Partition, entry: Entry, guard: object | None
    ) -> tuple[Any, Any]:
        if self.coordinator is None:
            raise KafkaError(ErrorCode.not_coordinator)
        was_open = partition.contains_open(entry)
        if partition.append(entry, guard):
            transaction = self.transactions[entry.tag]
            self.note(f"{partition.name}: record of transaction {entry.tag} of {producer}, {tuple(entry.producer)}")
            if self.newest.get(producer.name, producer) is not producer:
                raise ViolationError(f"{producer} writes although it is fenced")
            if partition.name in transaction.outcomes and not was_open:  # open again if a crash has lost the marker
                raise ViolationError(f"a record of transaction {entry.tag} follows its marker in {partition.name}")
        return None, partition.committed()

    # Observations

    def new_tag(self, owner: Producer, version: int) -> int:
        self.transactions.append(Transaction(owner, version))
        return len(self.transactions) - 1

    def set_intent(self, tag: int, *, commit: bool) -> None:
        self.transactions[tag].intent = commit

    def report(self, tag: int, *, commit: bool) -> None:
        transaction = self.transactions[tag]
        transaction.reported = commit
        self.note(f"{transaction.owner} knows that transaction {tag} is {'committed' if commit else 'aborted'}")
        if any(outcome is not commit for outcome in transaction.outcomes.values()):
            raise ViolationError(f"transaction {tag} had another outcome than in the answer to its producer")

    def answered(self, producer: Producer, kind: str, arguments: Sequence[Any], answer: Any) -> None:
        """Check an answer before it is sent; it may get lost."""
        if kind == "init" or (kind == "end" and arguments[2] >= 2):
            self.note(f"{producer}: {kind} is answered with {tuple(answer)}")
            owner = self._owners.setdefault((producer.name, answer), producer)
            if owner is not producer:
                raise ViolationError(f"{producer} and {owner} both got {answer}")
        if kind == "init":
            if arguments[0] is not None and self.newest.get(producer.name, producer) is not producer:
                raise ViolationError(f"{producer}, which is fenced, got {answer}")
            if arguments[0] is None:
                self.newest[producer.name] = producer
        elif kind == "produce":
            self.transactions[arguments[2]].acknowledged.append((arguments[1], arguments[3]))

    def _ended(self, partition: TopicPartition, tags: list[int], commit: bool) -> None:
        self.note(f"{partition}: {'commit' if commit else 'abort'} of {tags}")
        if len(tags) > 1:
            raise ViolationError(f"one marker ends the transactions {tags} in {partition}")
        for tag in tags:
            transaction = self.transactions[tag]
            transaction.outcomes[partition] = commit
            if commit and transaction.intent is not True:
                raise ViolationError(f"transaction {tag} is committed, but not by its producer")
            if len(set(transaction.outcomes.values())) > 1:
                raise ViolationError(f"transaction {tag} is committed in one partition and aborted in another")
            if transaction.reported is not None and transaction.reported is not commit:
                raise ViolationError(f"transaction {tag} has another outcome than in the answer to its producer")

    def _check_settled(self) -> None:
        assert self.coordinator is not None
        for name, metadata in self.coordinator.all():
            if metadata.state.is_prepared or metadata.state is TransactionState.ONGOING:
                raise ViolationError(f"{name} is still {metadata.state.kafka_name}")
        for partition in self.partitions.values():
            for producer_id, state in partition.producers.items():
                if state.tags:
                    raise ViolationError(f"the transaction of producer {producer_id} stays open in {partition.name}")
            latest: dict[int, int] = {}
            for entry in partition.entries:
                if entry.producer.epoch < latest.get(entry.producer.producer_id, NO_EPOCH):
                    raise ViolationError(f"the epoch of producer {entry.producer.producer_id} decreases")
                latest[entry.producer.producer_id] = entry.producer.epoch
        for tag, transaction in enumerate(self.transactions):
            for partition_name, sequence in transaction.acknowledged:
                kept = {(item.tag, item.sequence) for item in self.partitions[partition_name].entries}
                if transaction.reported and (tag, sequence) not in kept:
                    raise ViolationError(f"an acknowledged record of transaction {tag} is lost")


class _PendingAnswer:
    def __init__(self) -> None:
        self._callback: Callable[[Any, Any], None] | None = None
        self._result: tuple[Any, Any] | None = None

    def resolve(self, make: Callable[[], tuple[Any, Any]]) -> None:
        try:
            self._result = make()
        except KafkaError as error:
            self._result = error, None
        if self._callback is not None:
            self._callback(*self._result)

    def add_callback(self, then: Callable[[Any, Any], None]) -> None:
        if self._result is not None:
            then(*self._result)
        self._callback = then


class _Exchange:
    """A request that may be lost, repeated or delayed, like its answer."""

    def __init__(self, world: World, producer: Producer, process: Process, request: Any) -> None:
        self._world, self._producer, self._process, self._request = world, producer, process, request
        self._is_over = False
        chance = producer.random
        world.loop.call_later(REQUEST_TIMEOUT_S, self._finish, KafkaError(TIMED_OUT))
        if world.is_faulty and chance.random() < 0.03:
            return  # lost
        world.loop.call_later(self._delay(), self._serve)
        if world.is_faulty and chance.random() < 0.05:
            world.loop.call_later(chance.uniform(0.1, 10.0), self._serve)  # repeated by the network

    def _delay(self) -> float:
        chance = self._producer.random
        is_late = self._world.is_faulty and chance.random() < 0.02
        return chance.uniform(2.0, 8.0) if is_late else chance.uniform(0.001, 0.02)

    def _serve(self) -> None:
        kind, *arguments = self._request
        if kind == "end" and arguments[2] < 2 and self._is_over:
            return  # version 1 cannot detect a late end, as version 2 does
        if kind == "add" and self._is_over:
            self._world.added_late.add(arguments[0])
        if kind == "produce" and self._is_over and arguments[4] < 2 and arguments[0] in self._world.added_late:
            return  # nor a late record of a partition added by a late request
        try:
            answer, waiting = self._world.serve(self._producer, kind, arguments)
        except KafkaError as error:
            self._reply(error, None)
            return
        if isinstance(answer, _PendingAnswer):
            answer.add_callback(self._reply)
        else:
            self._reply(answer, waiting)

    def _reply(self, answer: Any, waiting: Any) -> None:
        if waiting is None:
            self._send_answer(answer)
        else:
            waiting.add_done_callback(lambda _: self._send_answer(answer))

    def _send_answer(self, answer: Any) -> None:
        kind, *arguments = self._request
        world = self._world
        if not isinstance(answer, KafkaError):
            world.answered(self._producer, kind, arguments, answer)
        if world.is_faulty and self._producer.random.random() < 0.03:
            return  # the answer is lost
        world.loop.call_later(self._delay(), self._finish, answer)

    def _finish(self, answer: Any) -> None:
        if not self._is_over:
            self._is_over = True
            self._world._step(self._producer, self._process, answer)


def _replay(shard: TransactionShard, batch: bytes) -> None:
    from headrace.wire.records import iter_records

    for record in iter_records(batch):
        assert record.key is not None
        shard.replay_bytes(record.key, record.value, 0, now_ms=0, producer_id=-1)


def _comparable(ids: dict[str, TransactionMetadata]) -> dict[str, TransactionMetadata]:
    """Clear the fields that the log does not store in these states, or in version 0."""
    return {
        name: each._replace(last_epoch=NO_EPOCH, previous_producer_id=-1, client_version=0, next_producer_id=-1)
        for name, each in ids.items()
    }


def play(history: History, trace: list[str] | None = None) -> ViolationError | None:
    """Play a history and return the first broken promise, if any."""
    world = World(history, trace)
    try:
        world.run()
    except ViolationError as violation:
        return violation
    return None


def explain(history: History, violation: ViolationError) -> str:
    """Return the report of a failing seed."""
    short = acts.shortest(history, lambda shorter: play(shorter) is not None)
    trace: list[str] = []
    found = play(short, trace)
    return acts.report("transactions", history, short, violation, [*trace[-60:], str(found)])
