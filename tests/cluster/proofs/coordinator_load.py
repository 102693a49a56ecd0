"""Consumers, transactional producers and observers in threads, which record what brokers have acknowledged."""

import contextlib
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from headrace.wire.apis import ApiKey
from tests.support.wire_client import WireClient

_CALL_S: Final = 30.0
"""Timeout of a call of a transactional producer, which is repeated if the error is retriable."""
_PATIENCE_S: Final = 120.0
"""Time after which a call is not repeated."""
_ABORTS: Final = 0.2
"""Share of transactions that are aborted."""
_LONGEST_OPEN_S: Final = 0.4
"""Maximum time that a transaction stays open; the actual time is random."""
_STAYS_S: Final = 4.0
"""Average time that a restless consumer stays in its group."""


class Fence:
    """The largest acknowledged offset by group and partition."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offsets: dict[tuple[str, int], int] = {}

    def raise_to(self, group: str, offsets: Mapping[int, int]) -> None:
        with self._lock:
            for partition, offset in offsets.items():
                self._offsets[group, partition] = max(offset, self._offsets.get((group, partition), -1))

    def of(self, group: str) -> dict[int, int]:
        with self._lock:
            return {partition: offset for (name, partition), offset in self._offsets.items() if name == group}


class Pauses:
    """The longest time without a success since `reset`."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._longest = 0.0
        self.successes = 0

    def reset(self) -> None:
        self._last = time.monotonic()
        self._longest = 0.0
        self.successes = 0

    def success(self) -> None:
        now = time.monotonic()
        self._longest = max(self._longest, now - self._last)
        self._last = now
        self.successes += 1

    @property
    def longest_s(self) -> float:
        return max(self._longest, time.monotonic() - self._last)


class Worker(ABC):
    """A thread that works until `stop`; `failure` is the exception that ended it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pauses = Pauses()
        self.errors: Counter[str] = Counter()
        """Errors that clients must expect, by name."""
        self.failure: BaseException | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()

    def join(self) -> None:
        self._thread.join(180)
        if self._thread.is_alive() and self.failure is None:
            self.failure = TimeoutError(f"{self.name} did not stop in time")

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as failure:  # noqa: BLE001  # reported by the checks
            self.failure = failure

    @abstractmethod
    def _work(self) -> None: ...

    def _note(self, error: KafkaException) -> None:
        self.errors[error.args[0].name()] += 1


class GroupMember(Worker):
    """Consumes and commits synchronously; a `restless` member repeatedly leaves and rejoins its group."""

    def __init__(
        self, bootstrap: str, topic: str, group: str, number: int, fence: Fence, *, strategy: str, restless: bool
    ) -> None:
        super().__init__(f"{group} member {number}")
        self.group = group
        self.values: set[int] = set()
        self.joins = 0
        """Number of assignments."""
        self._fence = fence
        self._topic = topic
        self.is_restless = restless
        self.commits = 0
        self._chance = random.Random(number)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": self.name.replace(" ", "-"),
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 30_000,
                "heartbeat.interval.ms": 500,
                "partition.assignment.strategy": strategy,
                "log_level": 2,
            }
        )

    def _joined(self, *_: object) -> None:
        self.joins += 1

    def _work(self) -> None:
        consumer = self._consumer
        try:
            while not self._ending.is_set():
                consumer.subscribe([self._topic], on_assign=self._joined)
                leaves_at = time.monotonic() + self._chance.expovariate(1 / _STAYS_S)
                while not self._ending.is_set() and not (self.is_restless and time.monotonic() > leaves_at):
                    self._consume()
                if self.is_restless:
                    consumer.unsubscribe()
        finally:
            consumer.close()

    def _consume(self) -> None:
        messages = [item for item in self._consumer.consume(100, timeout=0.2) if item.error() is None]
        if not messages:
            return
        self.values.update(map(_number, messages))
        try:
            committed = self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            self._note(error)
            return
        if all(item.error is None for item in committed):
            self.commits += 1
            self._fence.raise_to(self.group, {item.partition: item.offset for item in committed})
            self.pauses.success()


def _number(message: Message) -> int:
    value = message.value()
    assert value is not None
    return int(value)


class Source(Worker):
    """An idempotent producer of numbers."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, per_second: int) -> None:
        super().__init__("source")
        self.sent = 0
        self._partitions = partitions
        self._topic = topic
        self._pause_s = 1 / per_second
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 2})

    def _work(self) -> None:
        while not self._ending.wait(self._pause_s):
            self._producer.produce(
                self._topic, b"%d" % self.sent, partition=self.sent % self._partitions, on_delivery=self._delivered
            )
            self.sent += 1
            self._producer.poll(0)
        if self._producer.flush(60):
            raise TimeoutError("the records of the source were not acknowledged in time")

    def _delivered(self, error: Any, _: object) -> None:
        if error is not None:
            self.failure = KafkaException(error)
        else:
            self.pauses.success()


class Outcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Transaction(NamedTuple):
    """Transactions of a producer are numbered from 1; the number is also the offset that it commits for its group."""

    producer: int
    number: int

    @property
    def value(self) -> str:
        return f"{self.producer}:{self.number}"


class TransactionalProducer(Worker):
    """Writes one record to every partition in a transaction, and an offset of its group; aborts some."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, number: int, seed: int, fence: Fence) -> None:
        super().__init__(f"producer {number}")
        self.group = f"offsets-of-producer-{number}"
        self.outcomes: dict[Transaction, Outcome] = {}
        self.fatal: list[str] = []
        """Errors after which the producer was replaced."""
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._number = number
        self._random = random.Random(f"{seed} {number}")
        self._fence = fence
        self._latest = 0
        self._new: list[Transaction] = []
        self._settings = {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"producer-{number}",
            "transaction.timeout.ms": 60_000,
            "linger.ms": 0,
            "log_level": 2,
        }

    def _work(self) -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": self.group, "log_level": 2})
        try:
            while not self._ending.is_set():
                try:
                    self._produce(Producer(self._settings), consumer)
                except KafkaException as error:
                    self.fatal.append(str(error))
                    self._ending.wait(1)
        finally:
            consumer.close()

    def _produce(self, producer: Producer, consumer: Consumer) -> None:
        """Run transactions until a fatal error, which it raises."""
        self._retry(lambda: producer.init_transactions(_CALL_S))
        while not self._ending.is_set():
            self._latest += 1
            transaction = Transaction(self._number, self._latest)
            self.outcomes[transaction] = Outcome.UNKNOWN
            try:
                self._write(producer, consumer, transaction)
                aborts = self._random.random() < _ABORTS
                if not aborts:
                    self._retry(lambda: producer.commit_transaction(_CALL_S))
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                self._note(error)
                aborts = True
            if aborts:
                self._retry(lambda: producer.abort_transaction(_CALL_S))
                self.outcomes[transaction] = Outcome.ABORTED
            else:
                self.outcomes[transaction] = Outcome.COMMITTED
                self._fence.raise_to(self.group, {0: transaction.number})
                self.pauses.success()

    def _write(self, producer: Producer, consumer: Consumer, transaction: Transaction) -> None:
        producer.begin_transaction()
        for partition in range(self._partitions):
            producer.produce(self._topic, transaction.value.encode(), partition=partition)
        position = TopicPartition(self._topic, 0, transaction.number)
        metadata = consumer.consumer_group_metadata()
        self._retry(lambda: producer.send_offsets_to_transaction([position], metadata, _CALL_S))
        producer.poll(self._random.uniform(0, _LONGEST_OPEN_S))

    def _retry(self, call: Callable[[], object]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                call()
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
                self._note(error)
                time.sleep(0.1)
            else:
                return


class Observer(Worker):
    """Repeatedly reads the committed offsets of groups, and notes those that move backwards.

    It does not use librdkafka, whose admin client crashes on NOT_COORDINATOR.
    """

    def __init__(self, bootstrap: str, groups: Mapping[str, tuple[str, int]], fence: Fence) -> None:
        """`bootstrap`: one or more addresses. `groups` maps ids to a topic and its number of partitions."""
        super().__init__(f"observer at {bootstrap}")
        self.backwards: list[str] = []
        self.observations = 0
        self.groups = groups
        self._bootstraps = deque(bootstrap.split(","))
        self._fence = fence
        self._seen: dict[str, dict[int, int]] = defaultdict(dict)
        self._connections: dict[str, WireClient] = {}

    def _work(self) -> None:
        try:
            while not self._ending.wait(0.05):
                for group in self.groups:
                    with contextlib.suppress(NoCoordinatorError):
                        self.observe(group, timeout_s=0)
        finally:
            self.disconnect()

    def observe(self, group: str, *, timeout_s: float) -> dict[int, int]:
        """Return the committed offsets of a group, and compare them with all known ones.

        Raises NoCoordinatorError if no broker answers within `timeout_s`.
        """
        known = self._fence.of(group)
        for partition, offset in self._seen[group].items():
            known[partition] = max(offset, known.get(partition, -1))
        found = self._read(group, timeout_s)
        for partition, offset in known.items():
            if found.get(partition, -1) < offset:
                self.backwards.append(f"{group}, partition {partition}: {found.get(partition)} after {offset}")
        self._seen[group].update(found)
        self.observations += 1
        self.pauses.success()
        return found

    def _read(self, group: str, timeout_s: float) -> dict[int, int]:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self._ask(group)
            except (NoCoordinatorError, OSError) as error:
                self.disconnect()
                if time.monotonic() >= deadline:
                    raise NoCoordinatorError(group) from error
                time.sleep(0.1)

    def _ask(self, group: str) -> dict[int, int]:
        asked = {"coordinator_keys": [group]}
        (coordinator,) = self._connection(self._bootstraps[0]).ask(ApiKey.FIND_COORDINATOR, 4, asked)["coordinators"]
        if coordinator["error_code"] != "none":
            raise NoCoordinatorError(coordinator["error_code"])
        topic, count = self.groups[group]
        topics = [{"name": topic, "partition_indexes": list(range(count))}]
        fetched = {"groups": [{"group_id": group, "topics": topics}], "require_stable": True}
        address = f"{coordinator['host']}:{coordinator['port']}"
        (answer,) = self._connection(address).ask(ApiKey.OFFSET_FETCH, 8, fetched)["groups"]
        if answer["error_code"] != "none":
            self.errors[answer["error_code"]] += 1
            raise NoCoordinatorError(answer["error_code"])
        partitions = [partition for topic in answer["topics"] for partition in topic["partitions"]]
        # The reply to EndTxn comes before the marker makes the offsets visible; until then they are unstable.
        if any(partition["error_code"] != "none" for partition in partitions):
            raise NoCoordinatorError("unstable")
        return {
            partition["partition_index"]: partition["committed_offset"]
            for partition in partitions
            if partition["committed_offset"] >= 0
        }

    def _connection(self, address: str) -> WireClient:
        if address not in self._connections:
            self._connections[address] = WireClient(address)
        return self._connections[address]

    def disconnect(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._bootstraps.rotate(-1)


class NoCoordinatorError(Exception):
    """No broker returned the offsets of a group in time."""
