"""Transactional producers that follow the protocol: generators that yield requests and are sent the answers."""

import random
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from headrace.coordinator.transactions.states import NOBODY, ProducerIdentity
from headrace.errors import ErrorCode, KafkaError
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from tests.simulation.transactions.world import World

TIMED_OUT = ErrorCode.request_timed_out
_RETRIABLE = frozenset(
    {
        TIMED_OUT,
        ErrorCode.concurrent_transactions,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)
Process = Generator[Any, Any, None]


class Producer:
    """An instance of an application with a transactional id; `number` is unique."""

    def __init__(self, world: "World", name: str, number: int, supports_version_2: bool) -> None:
        self.world = world
        self.name = name
        self.number = number
        self.random = random.Random(f"producer {world.history.seed} {number}")
        self.supports_version_2 = supports_version_2
        self.identity = NOBODY
        self.is_alive = True
        self.paused_until = 0.0
        self._version = 2
        self._sequences: dict[TopicPartition, int] = {}

    def __str__(self) -> str:
        return f"{self.name}#{self.number}"

    def run(self) -> Process:
        """Run transactions until it is fenced or dies."""
        try:
            yield from self._init(None)
            for _ in range(30):
                yield from self._transaction()
                yield ("sleep", self.random.uniform(0.0, 1.0))
        except KafkaError as error:
            self.world.note(f"{self} ends: {error.code.name}")
            self.is_alive = False

    def _call(self, kind: str, *arguments: Any) -> Generator[Any, Any, Any]:
        """Retry a request until it is answered. Raises KafkaError for a final error."""
        while True:
            answer = yield (kind, *arguments)
            if not isinstance(answer, KafkaError):
                return answer
            if answer.code not in _RETRIABLE:
                raise answer
            yield ("sleep", self.random.uniform(0.02, 0.3))

    def _init(self, expected: ProducerIdentity | None) -> Process:
        self.identity = yield from self._call("init", expected)
        self._sequences.clear()

    def _transaction(self) -> Process:
        version = 2 if self.supports_version_2 and self.world.level >= 2 else 0
        if version > self._version:  # a late request of version 1 must not join this transaction
            yield from self._init(self.identity)
        self._version = version
        tag = self.world.new_tag(self, version)
        partitions = self.random.sample(self.world.names, self.random.randint(1, len(self.world.names)))
        succeeded = yield from self._write(tag, version, partitions)
        if self.random.random() < 0.1:
            yield ("sleep", self.random.uniform(1.0, 12.0))  # may exceed the transaction timeout
        commit = succeeded and self.random.random() < 0.7
        self.world.set_intent(tag, commit=commit)
        began = self.identity
        try:
            answer = yield from self._call("end", began, commit, version)
        except KafkaError as error:
            if error.code is not ErrorCode.invalid_txn_state or (commit and version < 2):
                raise
            # nothing was begun (version 1), or the transaction timed out (version 2)
            yield from self._init(self.identity)
            return
        self.world.report(tag, commit=commit)
        if version >= 2:
            if answer.producer_id != self.identity.producer_id or answer.epoch != self.identity.epoch:
                self._sequences.clear()
            self.identity = answer
        if not succeeded:
            yield from self._init(self.identity)

    def _write(self, tag: int, version: int, partitions: list[TopicPartition]) -> Generator[Any, Any, bool]:
        """Return False if the outcome is unknown and the transaction must be aborted."""
        for partition in partitions:
            if version < 2:
                yield from self._call("add", self.identity, partition)
            for _ in range(self.random.randint(1, 3)):
                sequence = self._sequences.get(partition, -1) + 1
                self._sequences[partition] = sequence
                for _ in range(self.random.choice((1, 20))):
                    answer = yield ("produce", self.identity, partition, tag, sequence, version)
                    if not isinstance(answer, KafkaError):
                        break
                    if answer.code is ErrorCode.invalid_producer_epoch and version < 2:
                        raise answer
                    if answer.code not in _RETRIABLE:
                        return False
                    yield ("sleep", self.random.uniform(0.02, 0.3))
                else:
                    return False
        return True
