"""Transactions at the leader of a partition: Produce, markers, and the view of consumers and tools."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.wire.apis import ApiKey
from headrace.wire.batch import TRANSACTIONAL_FLAG
from headrace.wire.records import RecordData, build_batch
from tests.parity.both import Both, Message, Names, Side
from tests.support.waiting import wait_for

VERSION_1, VERSION_2 = 11, 12
"""Produce versions: up to 11 producers add partitions themselves, from 12 on brokers do."""
_OWN: frozenset[str] = frozenset({"producer_id", "last_timestamp", "base_timestamp", "max_timestamp", "records"})
"""Fields with ids and clocks specific to a broker."""


def common(value: Any) -> Any:
    """Return an answer without values specific to a broker."""
    if isinstance(value, dict):
        return {
            name: "<now>" if name == "timestamp" and each != -1 else common(each)
            for name, each in value.items()
            if name not in _OWN
        }
    return [common(item) for item in value] if isinstance(value, list) else value


class Producer:
    """A transactional producer on both brokers, and a topic with two partitions."""

    def __init__(self, both: Both, name: Names) -> None:
        self.both = both
        self.topic = both.create(name(), 2)
        self.transactional_id = name()
        self.ids: dict[int, tuple[int, int]] = {}
        self._now_ms = round(time.time() * 1000) - 60_000
        """Timestamp of the records: equal on both brokers, and before any marker."""
        for side in both.sides:
            wait_for(lambda side=side: self._has_coordinator(side), "a coordinator")  # type: ignore[misc]
            for _ in range(2):  # for a previous epoch
                wait_for(lambda side=side: self._init(side), "a producer id")  # type: ignore[misc]

    def _has_coordinator(self, side: Side) -> bool:
        """Also creates `__transaction_state` in Kafka."""
        answer = side.ask(ApiKey.FIND_COORDINATOR, 3, {"key": self.transactional_id, "key_type": 1}, "producer")
        return bool(answer["error_code"] == "none")

    def _init(self, side: Side) -> bool:
        message = {"transactional_id": self.transactional_id, "transaction_timeout": 60_000}
        answer = side.ask(ApiKey.INIT_PRODUCER_ID, 4, message, "producer")
        self.ids[id(side)] = answer["producer_id"], answer["producer_epoch"]
        return bool(answer["error_code"] == "none")

    def _ask(self, api: ApiKey, version: int, make: Callable[[Side, int, int], Message], case: str) -> None:
        for side in self.both.sides:
            side.send(api, version, make(side, *self.ids[id(side)]), "producer")
        self.both.receive(api, version, case=case, on="producer", only=common)

    def add(self, *partitions: int) -> None:
        """Send AddPartitionsToTxn, after the end of the previous transaction."""
        for side in self.both.sides:
            wait_for(lambda side=side: self._added(side, partitions), "the partitions in the transaction")  # type: ignore[misc]

    def _added(self, side: Side, partitions: tuple[int, ...]) -> bool:
        producer_id, epoch = self.ids[id(side)]
        message = {
            "v3_and_below_transactional_id": self.transactional_id,
            "v3_and_below_producer_id": producer_id,
            "v3_and_below_producer_epoch": epoch,
            "v3_and_below_topics": [{"name": self.topic, "partitions": list(partitions)}],
            "transactional_id": self.transactional_id,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "topics": [{"name": self.topic, "partitions": list(partitions)}],
        }
        answer = side.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, message, "producer")
        return "concurrent_transactions" not in str(answer)

    def produce(
        self,
        sequence: int,
        *,
        partition: int = 0,
        version: int = VERSION_1,
        epoch: int = 0,
        transactional: bool = True,
        with_id: bool = True,
        case: str = "",
    ) -> None:
        """Send a batch of one record, with `epoch` added to the producer's."""
        make = self._batch(sequence, partition, epoch, transactional=transactional, with_id=with_id)
        self._ask(ApiKey.PRODUCE, version, make, case or f"sequence {sequence}")

    def errors(self, sequence: int, *, version: int) -> tuple[str, str]:
        """Send a batch of one record, and return the errors of Kafka and Headrace."""
        make = self._batch(sequence, 0, 0, transactional=True, with_id=True)
        kafka, headrace = (
            side.ask(ApiKey.PRODUCE, version, make(side, *self.ids[id(side)]), "producer")["responses"][0][
                "partition_responses"
            ][0]["error_code"]
            for side in self.both.sides
        )
        return str(kafka), str(headrace)

    def _batch(
        self, sequence: int, partition: int, epoch: int, *, transactional: bool, with_id: bool
    ) -> Callable[[Side, int, int], Message]:
        self._now_ms += 1

        def message(side: Side, producer_id: int, known: int) -> Message:
            records = build_batch(
                [RecordData(b"k", b"v", self._now_ms)],
                producer_id=producer_id,
                producer_epoch=known + epoch,
                base_sequence=sequence,
                attributes=TRANSACTIONAL_FLAG if transactional else 0,
            )
            return {
                "transactional_id": self.transactional_id if with_id else None,
                "acks": -1,
                "timeout": 1000,
                "topic_data": [
                    {
                        "name": self.topic,
                        "topic_id": side.topic_id(self.topic),
                        "partition_data": [{"index": partition, "records": records}],
                    }
                ],
            }

        return message

    def end(self, *, commit: bool, version: int = 4) -> None:
        """Send EndTxn and wait for its markers."""

        def message(_: Side, producer_id: int, epoch: int) -> Message:
            return {
                "transactional_id": self.transactional_id,
                "producer_id": producer_id,
                "producer_epoch": epoch,
                "committed": commit,
            }

        for side in self.both.sides:
            answer = side.ask(ApiKey.END_TXN, version, message(side, *self.ids[id(side)]), "producer")
            assert answer["error_code"] == "none", answer
            if version >= 5:
                self.ids[id(side)] = answer["producer_id"], answer["producer_epoch"]
            wait_for(lambda side=side: self._is_complete(side), "the end of the transaction")  # type: ignore[misc]

    def _is_complete(self, side: Side) -> bool:
        message = {"transactional_ids": [self.transactional_id]}
        [described] = side.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, message, "producer")["transaction_states"]
        return str(described["transaction_state"]).startswith("Complete")

    def mark(
        self, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 0, version: int = 0, case: str = ""
    ) -> None:
        """Send WriteTxnMarkers as a coordinator, with `epoch` added to the producer's."""

        def message(_: Side, producer_id: int, known: int) -> Message:
            marker = {
                "producer_id": producer_id,
                "producer_epoch": known + epoch,
                "transaction_result": commit,
                "topics": [{"name": self.topic, "partition_indexes": [0]}],
                "coordinator_epoch": coordinator_epoch,
                "transaction_version": version,
            }
            return {"markers": [marker]}

        self._ask(ApiKey.WRITE_TXN_MARKERS, 2, message, case or f"marker {epoch} {coordinator_epoch} {version}")

    def compare(self, case: str = "", *, newest: bool = False) -> None:
        """Compare the answers to consumers and tools, and the `newest` timestamp if markers cannot share one."""

        def producers(*_: object) -> Message:
            return {"topics": [{"name": self.topic, "partition_indexes": [0, 1]}]}

        def offsets(timestamp: int, isolation: int) -> Callable[[Side, int, int], Message]:
            partitions = [{"partition_index": index, "timestamp": timestamp} for index in range(2)]
            topics = [{"name": self.topic, "partitions": partitions}]
            return lambda *_: {"replica_id": -1, "isolation_level": isolation, "topics": topics, "timeout_ms": 1000}

        def fetch(side: Side, offset: int, isolation: int) -> Message:
            partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            return {
                "replica_id": -1,
                "max_wait": 0,
                "min_bytes": 0,
                "max_bytes": 1 << 20,
                "isolation_level": isolation,
                "topics": [{"topic": self.topic, "topic_id": side.topic_id(self.topic), "partitions": [partition]}],
                "forgotten_topics_data": [],
            }

        self._ask(ApiKey.DESCRIBE_PRODUCERS, 0, producers, f"producers {case}")
        for isolation in range(2):
            for timestamp in (-1, -2, 0, -3)[: 4 if newest else 3]:
                self._ask(ApiKey.LIST_OFFSETS, 7, offsets(timestamp, isolation), f"{timestamp} {isolation} {case}")
            for offset in range(4):
                self._ask(
                    ApiKey.FETCH,
                    12,
                    lambda side, *_, offset=offset, isolation=isolation: fetch(side, offset, isolation),
                    f"fetch {offset} {isolation} {case}",
                )


@pytest.fixture
def producer(both: Both, name: Names) -> Producer:
    return Producer(both, name)


@pytest.mark.parametrize("version", [8, 9, 10, 11])
def test_partitions_added_by_the_producer(producer: Producer, version: int) -> None:
    producer.produce(0, version=version, case="not added")
    producer.add(0)
    producer.produce(0, version=version)
    producer.compare("open", newest=True)
    producer.produce(0, version=version, case="repeated")
    producer.produce(5, version=version, case="with a gap")
    producer.produce(1, version=version, transactional=False, case="outside")
    producer.produce(1, version=version, epoch=-1, case="of an old epoch")
    producer.produce(1, version=version, epoch=1, case="of a new epoch")
    producer.produce(0, partition=1, version=version, case="in another partition")
    producer.end(commit=False)
    producer.compare("aborted")
    producer.produce(1, version=version, case="after the end")
    producer.produce(0, version=version, case="repeated after the end")
    producer.add(0, 1)
    assert producer.errors(0, version=version) == ("none", "out_of_order_sequence_number"), "repeated in the next one"
    producer.produce(1, version=version)
    producer.produce(0, partition=1, version=version)
    producer.end(commit=True)
    producer.compare("committed")


@pytest.mark.parametrize("version", [12, 13])
def test_partitions_added_by_the_broker(producer: Producer, version: int) -> None:
    producer.produce(3, version=version, case="an unknown producer in the middle")
    producer.produce(0, version=version)
    producer.compare("open", newest=True)
    producer.produce(1, version=version)
    producer.produce(1, version=version, case="repeated")
    producer.produce(1, version=version, epoch=-1, case="of an old epoch")
    producer.produce(0, version=version, epoch=1, case="of a new epoch")
    producer.produce(2, version=version, transactional=False, case="outside")
    producer.end(commit=True, version=5)
    producer.compare("committed")
    producer.produce(2, version=version, epoch=-1, case="of the ended epoch")
    producer.produce(1, version=version, epoch=-1, case="repeated after the end")
    producer.produce(2, version=version, case="continuing the sequence")
    producer.produce(0, version=version)
    producer.produce(0, partition=1, version=version)
    producer.end(commit=False, version=5)
    producer.compare("aborted")


def test_without_a_transactional_id(producer: Producer) -> None:
    producer.produce(0, with_id=False)
    producer.produce(0, transactional=False)
    producer.compare()


@pytest.mark.parametrize("version", [9, 11])
def test_an_internal_topic(producer: Producer, version: int) -> None:
    producer.topic = "__transaction_state"
    producer.produce(0, version=version, case="transactional")
    producer.produce(0, version=version, transactional=False, case="idempotent")


def test_markers(producer: Producer) -> None:
    producer.mark(commit=True, case="without a transaction")
    producer.compare("after a marker without a transaction")
    producer.add(0)
    producer.produce(0)
    producer.mark(commit=True, epoch=-1, case="of an old epoch")
    producer.mark(commit=False, version=2, case="of version 2 with the epoch of the batches")
    producer.compare("open", newest=True)
    producer.mark(commit=False, coordinator_epoch=3)
    producer.compare("aborted")
    producer.mark(commit=False, coordinator_epoch=2, case="of a replaced coordinator")
    producer.mark(commit=False, coordinator_epoch=3, case="repeated")
    producer.mark(commit=True, coordinator_epoch=3, epoch=1, version=2, case="of version 2")
    producer.mark(commit=True, coordinator_epoch=3, epoch=1, version=2, case="of version 2, repeated")
    producer.mark(commit=True, coordinator_epoch=3, case="of the epoch before")
    producer.produce(1, case="of the epoch before")
    producer.compare("after markers")
