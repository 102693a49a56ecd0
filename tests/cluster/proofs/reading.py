"""Read a whole topic, and compare it with its producers' acknowledgements."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tests.cluster.proofs.load import NOISE, UNSENT, Outcome, Record, Written, parse

_PATIENCE_S = 120.0


class Read(NamedTuple):
    """The visible records of a topic with their offsets, in partition order, without those with acks=1."""

    records: Mapping[int, Sequence[tuple[int, Record]]]
    ends: Mapping[int, int]
    """High watermarks, by partition."""

    @property
    def size(self) -> int:
        return sum(len(records) for records in self.records.values())


class Findings(NamedTuple):
    """Errors by kind, as sentences; all lists are empty if the topic is correct."""

    lost: list[str]
    duplicated: list[str]
    disordered: list[str]
    split: list[str]
    """Transactions that are only partly visible, or visible although they were aborted."""
    misplaced: list[str]
    """Records that are not at the offset that was acknowledged."""

    @property
    def all(self) -> list[str]:
        return [sentence for sentences in self for sentence in sentences]


def read(bootstrap: str, topic: str, partitions: int) -> Read:
    """Read all committed records except those with acks=1. Raises AssertionError for a damaged record."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    records: dict[int, list[tuple[int, Record]]] = {partition: [] for partition in range(partitions)}
    try:
        places = [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)]
        ends = {place.partition: consumer.get_watermark_offsets(place, timeout=60)[1] for place in places}
        consumer.assign(places)
        unread = set(range(partitions))
        deadline = time.monotonic() + _PATIENCE_S
        while unread:
            messages = consumer.consume(10_000, 0.5)
            if messages:
                deadline = time.monotonic() + _PATIENCE_S
            assert time.monotonic() < deadline, f"no more records of partitions {sorted(unread)}, which end at {ends}"
            for message in messages:
                error, partition = message.error(), message.partition()
                assert partition is not None
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    unread.discard(partition)
                    continue
                value, offset = message.value(), message.offset()
                assert value is not None
                assert offset is not None
                if not value.startswith(NOISE):
                    records[partition].append((offset, parse(value)))
    finally:
        consumer.close()
    return Read(records, ends)


def check(found: Read, written: Sequence[Written]) -> Findings:
    """Compare a full read with the producers' notes."""
    checking = _Checking(written)
    for partition, records in found.records.items():
        for offset, record in records:
            checking.see(partition, offset, record)
    for producer in written:
        checking.look_for_losses(producer)
        checking.look_at_transactions(producer)
    return checking.findings


class _Checking:
    def __init__(self, written: Sequence[Written]) -> None:
        self.findings = Findings([], [], [], [], [])
        self._written = {producer.producer: producer for producer in written}
        self._seen = {
            (producer.producer, partition): bytearray(len(offsets))
            for producer in written
            for partition, offsets in enumerate(producer.offsets)
        }
        self._last: dict[tuple[int, int], int] = {}
        """The largest number seen, by producer and partition."""
        self._visible: Counter[tuple[int, int]] = Counter()
        """Records seen, by producer and transaction."""

    def see(self, partition: int, offset: int, record: Record) -> None:
        where = f"offset {offset} of partition {partition}: {record}"
        if record.partition != partition:
            self.findings.misplaced.append(where)
            return
        key = (record.producer, partition)
        if self._seen[key][record.number]:
            self.findings.duplicated.append(where)
        elif record.number < self._last.get(key, -1):
            self.findings.disordered.append(f"{where} after number {self._last[key]}")
        self._seen[key][record.number] = 1
        self._last[key] = max(record.number, self._last.get(key, -1))
        acknowledged = self._written[record.producer].offsets[partition][record.number]
        if acknowledged >= 0 and acknowledged != offset:
            self.findings.misplaced.append(f"{where}, acknowledged at offset {acknowledged}")
        if record.transaction >= 0:
            self._visible[record.producer, record.transaction] += 1

    def look_for_losses(self, producer: Written) -> None:
        for partition, offsets in enumerate(producer.offsets):
            seen = self._seen[producer.producer, partition]
            self.findings.lost.extend(
                f"record {number} of producer {producer.producer} in partition {partition}, acknowledged at {offset}"
                for number, offset in enumerate(offsets)
                if offset != UNSENT and not seen[number] and producer.transactions[partition][number] < 0
            )

    def look_at_transactions(self, producer: Written) -> None:
        sent = Counter(transaction for transactions in producer.transactions for transaction in transactions)
        for transaction, outcome in enumerate(producer.outcomes):
            count, whole = self._visible[producer.producer, transaction], sent[transaction]
            what = f"{count} of {whole} records of transaction {transaction} of producer {producer.producer}"
            if outcome is Outcome.COMMITTED and count < whole:
                self.findings.lost.append(f"only {what} are visible, although it was committed")
            elif (outcome is Outcome.ABORTED and count) or count not in (0, whole):
                self.findings.split.append(f"{what} ({outcome.name}) are visible")
