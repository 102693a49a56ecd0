"""Produce requests appended together have the same effects as one by one."""

import errno
import os
import random
import struct
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.broker.apis import produce
from headrace.replication.appends import Appended, Batch
from headrace.replication.partition import Partition
from headrace.storage.files.log_file import LogFile
from headrace.testing import Broker
from headrace.wire.apis import ApiKey, request_encoder, response_reader, schema
from headrace.wire.compression import Codec
from headrace.wire.records import RecordData, build_batch
from tests.hostile.raw import BrokerClosedError, RawConnection
from tests.support.flush_disk import Disk
from tests.support.topic_requests import create
from tests.support.wire_client import WireClient, plain

NOW_MS: Final = 1_700_000_000_000
VERSION: Final = 9
SEEDS_PER_PART: Final = 12
SMALL: Final = 800
NONE, CORRUPT, STORAGE = "none", "corrupt_message", "kafka_storage_error"


class Clock:
    """A stopped clock, which makes records with broker timestamps reproducible."""

    def time_ns(self) -> int:
        return NOW_MS * 1_000_000


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "time", Clock())


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of all runs of more than one batch appended together."""
    sizes: list[int] = []
    append_all = Partition.append_all

    def recording(self: Partition, batches: Sequence[Batch], *, now_ms: int) -> list[Appended]:
        sizes.append(len(batches))
        return append_all(self, batches, now_ms=now_ms)

    monkeypatch.setattr(Partition, "append_all", recording)
    return sizes


# Requests


def frame(api_key: ApiKey, version: int, correlation_id: int, message: dict[str, Any]) -> bytes:
    body = bytearray(struct.pack(">hhih", api_key, version, correlation_id, 4) + b"test")
    if schema(api_key, version).has_flexible_request_header:
        body.append(0)
    request_encoder(api_key, version)(body, message)
    return struct.pack(">i", len(body)) + bytes(body)


def produce_frame(
    correlation_id: int, topics: dict[str, list[tuple[int, bytes]]], *, acks: int = 1, version: int = VERSION
) -> bytes:
    named = [
        {"name": name, "partition_data": [{"index": index, "records": records} for index, records in batches]}
        for name, batches in topics.items()
    ]
    message = {"acks": acks, "timeout": 10_000, "topic_data": named}
    return frame(ApiKey.PRODUCE, version, correlation_id, message)


def latest(topic: str, partitions: int, timestamp: int = -1) -> dict[str, Any]:
    partition_requests = [{"partition_index": index, "timestamp": timestamp} for index in range(partitions)]
    return {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": partition_requests}]}


def batch(sequence: int = -1, *, producer_id: int = 7, value: bytes = b"v", count: int = 1) -> bytes:
    records = [RecordData(b"k", value, NOW_MS)] * count
    if sequence < 0:
        return build_batch(records)
    return build_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


def torn_checksum(records: bytes) -> bytes:
    return records[:-1] + bytes([records[-1] ^ 1])


def outcomes(connection: RawConnection, count: int) -> list[tuple[int, str, int]]:
    """Read answers; return the correlation id, error and base offset of the partition in each."""
    found = []
    for _ in range(count):
        answer = connection.receive()
        message = plain(response_reader(ApiKey.PRODUCE, VERSION)(answer, 5)[0])
        [partition] = message["responses"][0]["partition_responses"]
        found.append((int.from_bytes(answer[:4]), partition["error_code"], partition["base_offset"]))
    return found


def create_topic(broker: Broker, name: str, partitions: int = 1, **configs: object) -> None:
    with WireClient(broker.bootstrap) as client:
        assert create(client, name, partitions, retention_ms=-1, **configs) == NONE


def connect(broker: Broker) -> RawConnection:
    return RawConnection("127.0.0.1", broker.port)


# The same requests one by one and together


class Scenario:
    """Random requests to one topic, in rounds; each round uses a new connection."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.topic = f"seed-{seed}"
        self.partitions = self._random.choice([1, 1, 3])
        self.configs: dict[str, object] = {
            "internal_segment_bytes": self._random.choice([1 << 30, 1 << 30, 700, 3000]),
            "segment_ms": self._random.choice([86_400_000, 86_400_000, 400]),
            "index_interval_bytes": self._random.choice([4096, 500, 0]),
            "cleanup_policy": self._random.choice(["delete", "delete", "compact"]),
            "compression_type": self._random.choice(["producer", "producer", "gzip", "uncompressed"]),
            "message_timestamp_type": self._random.choice(["CreateTime", "CreateTime", "LogAppendTime"]),
            "max_message_bytes": self._random.choice([1 << 20, 1 << 20, SMALL]),
            "flush_messages": self._random.choice([2**63 - 1, 2**63 - 1, 1, 7]),
        }
        self._sent: dict[tuple[int, int], list[bytes]] = {}
        self._next: dict[tuple[int, int], tuple[int, int]] = {}
        self._correlation_id = 0
        self.rounds = [
            [self._request() for _ in range(self._random.choice([1, 2, 9, 30]))]
            + [self._end() for _ in range(self._random.random() < 0.3)]
            for _ in range(3)
        ]
        if self.configs["max_message_bytes"] != SMALL and not self._waits_for_flush:
            self.rounds.append([self._unanswered_or_not() for _ in range(8)])

    @property
    def _waits_for_flush(self) -> bool:
        return self.configs["flush_messages"] in (1, 7)

    def _request(self) -> bytes:
        self._correlation_id += 1
        luck = self._random.random()
        if luck < 0.06 and not self._waits_for_flush:
            return frame(ApiKey.LIST_OFFSETS, 1, self._correlation_id, latest(self.topic, self.partitions))
        if luck < 0.1:
            return produce_frame(
                self._correlation_id, {"unknown": [(0, batch())], "__consumer_offsets": [(0, batch())]}
            )
        acks = 2 if luck < 0.12 else self._random.choice([1, 1, -1])
        times = range(self._random.choice([1, 1, 2]))
        batches = [self._any_batch(self._random.randrange(self.partitions), is_sound=False) for _ in times]
        version = self._random.choice([3, 8, 9, 12])
        return produce_frame(self._correlation_id, {self.topic: batches}, acks=acks, version=version)

    def _any_batch(self, partition: int, *, is_sound: bool) -> tuple[int, bytes]:
        chance = self._random
        count = chance.choice([1, 1, 2, 5])
        timestamp = NOW_MS + chance.choice([0, chance.randrange(-1000, 1000)])
        keys = [None if not is_sound and chance.random() < 0.03 else b"k%d" % chance.randrange(5) for _ in range(count)]
        value = bytes([chance.randrange(65, 90)]) * chance.choice([1, 30, 300])
        records = [RecordData(key, value, timestamp + chance.randrange(30)) for key in keys]
        codec = chance.choice([Codec.NONE, Codec.NONE, Codec.GZIP])
        if is_sound or chance.random() < 0.25:
            content = build_batch(records, codec=codec)
        else:
            content = self._of_producer((partition, chance.randrange(3)), records, codec)
        return partition, torn_checksum(content) if not is_sound and chance.random() < 0.04 else content

    def _of_producer(self, key: tuple[int, int], records: list[RecordData], codec: Codec) -> bytes:
        epoch, sequence = self._next.get(key, (0, 0))
        sent = self._sent.setdefault(key, [])
        luck = self._random.random()
        if luck < 0.12 and sent:
            return self._random.choice(sent[-7:])
        if luck < 0.16:
            sequence += 3
        elif luck < 0.2:
            epoch = max(0, epoch - 1)
        elif luck < 0.24:
            epoch, sequence = epoch + 1, 0
        content = build_batch(
            records, codec=codec, producer_id=1000 + key[1], producer_epoch=epoch, base_sequence=sequence
        )
        sent.append(content)
        self._next[key] = epoch, sequence + len(records)
        return content

    def _end(self) -> bytes:
        """Return a request that ends the connection."""
        self._correlation_id += 1
        failing = [(0, torn_checksum(batch()))]
        return self._random.choice(
            [
                produce_frame(self._correlation_id, {self.topic: failing}, acks=0),
                struct.pack(">ihhih", 10, 0, 99, self._correlation_id, -1),
                struct.pack(">ihhihh", 12, 0, VERSION, self._correlation_id, -1, 5),
                struct.pack(">i", -5),
            ]
        )

    def _unanswered_or_not(self) -> bytes:
        """Return a valid request; a failing one with acks=0 would end the connection."""
        self._correlation_id += 1
        batches = [self._any_batch(self._random.randrange(self.partitions), is_sound=True)]
        return produce_frame(self._correlation_id, {self.topic: batches}, acks=self._random.choice([0, 1]))

    def questions(self) -> Iterator[tuple[ApiKey, int, dict[str, Any]]]:
        indexes = list(range(self.partitions))
        yield ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": self.topic, "partition_indexes": indexes}]}
        for timestamp in (-1, -2, -3, *range(NOW_MS - 1000, NOW_MS + 1100, 150)):
            yield ApiKey.LIST_OFFSETS, 7, {**latest(self.topic, self.partitions, timestamp), "timeout_ms": 1000}


def answers_to(broker: Broker, pieces: Sequence[bytes], *, cut: int | None = None) -> list[bytes]:
    """Send the pieces, waiting for the answers to one before the next; return all answers."""
    answers = []
    with connect(broker) as connection:
        for piece in pieces:
            connection.send(piece[:cut])
            if cut is not None:
                connection.send(piece[cut:])
            connection.send(BARRIER)
            try:
                while (answer := connection.receive())[:4] != BARRIER_ID:
                    answers.append(answer)
            except BrokerClosedError:
                break
    return answers


BARRIER_ID: Final = struct.pack(">i", -77)
BARRIER: Final = struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, -77, -1)


def files_of(broker: Broker, topic: str) -> dict[str, bytes]:
    """Return logs, snapshots and epochs; index entries differ between runs and single batches."""
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in sorted(broker.data.glob(f"{topic}-[0-9]*/*"))
        if path.suffix not in (".index", ".timeindex") and path.name != "partition.metadata"
    }


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_requests_sent_together_have_the_same_effects_as_one_by_one(tmp_path: Path, runs: list[int], part: int) -> None:
    scenarios = [Scenario(seed) for seed in range(part * SEEDS_PER_PART, (part + 1) * SEEDS_PER_PART)]
    with Broker(data=tmp_path / "single") as single, Broker(data=tmp_path / "together") as together:
        for scenario in scenarios:
            for broker in (single, together):
                create_topic(broker, scenario.topic, scenario.partitions, **scenario.configs)
            for requests in scenario.rounds:
                expected = answers_to(single, requests)
                joined = b"".join(requests)
                cut = None if len(runs) % 2 else len(joined) // 2
                assert answers_to(together, [joined], cut=cut) == expected, scenario.configs
            with WireClient(single.bootstrap) as one, WireClient(together.bootstrap) as other:
                for question in scenario.questions():
                    assert one.ask(*question) == other.ask(*question), scenario.configs
    assert sum(runs) > 5 * SEEDS_PER_PART
    for scenario in scenarios:
        written = files_of(single, scenario.topic)
        assert len(written) >= scenario.partitions
        assert files_of(together, scenario.topic) == written, scenario.configs


# Single cases


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(data=tmp_path / "data") as broker:
        create_topic(broker, "t")
        yield broker


def run_of(sequences: Sequence[int], *, topic: str = "t", first_id: int = 0) -> bytes:
    return b"".join(
        produce_frame(first_id + number, {topic: [(0, batch(sequence, value=bytes(300)))]})
        for number, sequence in enumerate(sequences)
    )


@pytest.mark.parametrize(("segment_bytes", "is_kept"), [(1 << 30, 0), (400, 2)])
def test_batches_refused_by_a_full_disk_are_appended_once_when_retried(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, runs: list[int], segment_bytes: int, is_kept: int
) -> None:
    create_topic(broker, "u", internal_segment_bytes=segment_bytes)
    append = LogFile.append
    capacity = [1 + is_kept]

    def full(*arguments: Any) -> None:
        if not capacity[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        capacity[0] -= 1
        append(*arguments)

    monkeypatch.setattr(LogFile, "append", full)
    with connect(broker) as connection:
        connection.send(run_of([0], topic="u"))
        assert outcomes(connection, 1) == [(0, NONE, 0)]
        connection.send(run_of([1, 2, 3, 4], topic="u", first_id=1))
        kept = [(1 + number, NONE, 1 + number) for number in range(is_kept)]
        assert outcomes(connection, 4) == kept + [(number, STORAGE, -1) for number in range(1 + is_kept, 5)]
        capacity[0] = 100
        for _ in range(2):
            connection.send(run_of([1, 2, 3, 4], topic="u", first_id=1))
            assert outcomes(connection, 4) == [(number, NONE, number) for number in range(1, 5)]
        connection.send(run_of([5], topic="u", first_id=5))
        assert outcomes(connection, 1) == [(5, NONE, 5)]
    assert 4 in runs


def test_batches_of_a_run_are_validated_separately(broker: Broker, runs: list[int]) -> None:
    batches = [batch(0), torn_checksum(batch(1)), batch(1), batch(9), batch(0), batch(2)]
    frames = [produce_frame(number, {"t": [(0, each)]}) for number, each in enumerate(batches)]
    with connect(broker) as connection:
        connection.send(b"".join(frames))
        assert outcomes(connection, 6) == [
            (0, NONE, 0),
            (1, CORRUPT, -1),
            (2, NONE, 1),
            (3, "out_of_order_sequence_number", -1),
            (4, NONE, 0),
            (5, NONE, 2),
        ]
    assert runs == [6]


def test_a_failed_request_with_acks_0_ends_the_connection_after_earlier_answers(broker: Broker) -> None:
    frames = [
        produce_frame(0, {"t": [(0, batch())]}),
        produce_frame(1, {"t": [(0, torn_checksum(batch()))]}, acks=0),
        produce_frame(2, {"t": [(0, batch())]}),
    ]
    with connect(broker) as connection:
        connection.send(b"".join(frames))
        assert outcomes(connection, 1) == [(0, NONE, 0)]
        with pytest.raises(BrokerClosedError):
            connection.receive()


def test_a_run_and_the_next_request_are_answered_in_order_after_the_flush(broker: Broker, disk: Disk) -> None:
    create_topic(broker, "u", flush_messages=1)
    disk.stuck.add(next((broker.data / "u-0").glob("*.log")).stat().st_ino)
    with connect(broker) as connection, WireClient(broker.bootstrap) as other:
        question = frame(ApiKey.LIST_OFFSETS, 1, 9, latest("u", 1))
        connection.send(run_of([0, 1, 2], topic="u") + question + run_of([3, 4], topic="u", first_id=10))
        assert disk.begun.wait(10)
        assert other.ask(ApiKey.LIST_OFFSETS, 1, latest("u", 1))["topics"][0]["partitions"][0]["offset"] == 0
        disk.free.set()
        assert outcomes(connection, 3) == [(0, NONE, 0), (1, NONE, 1), (2, NONE, 2)]
        answer = connection.receive()
        assert int.from_bytes(answer[:4]) == 9
        found = plain(response_reader(ApiKey.LIST_OFFSETS, 1)(answer, 4)[0])
        assert found["topics"][0]["partitions"][0]["offset"] == 3
        assert outcomes(connection, 2) == [(10, NONE, 3), (11, NONE, 4)]


def test_a_run_whose_flush_fails_is_answered_with_the_error(broker: Broker, disk: Disk) -> None:
    create_topic(broker, "u", flush_messages=1)
    disk.error = errno.EIO
    with connect(broker) as connection:
        connection.send(run_of([0, 1, 2], topic="u"))
        assert [error for _, error, _ in outcomes(connection, 3)] == [STORAGE] * 3
    disk.error = None


def test_a_run_may_arrive_split_at_any_byte(broker: Broker) -> None:
    name = f"cut-{uuid.uuid4().hex[:8]}"
    create_topic(broker, name)
    joined = b"".join(produce_frame(number, {name: [(0, batch())]}) for number in range(3))
    with connect(broker) as connection:
        for cut in range(1, len(joined)):
            connection.send(joined[:cut])
            connection.send(joined[cut:])
            first = 3 * (cut - 1)
            assert outcomes(connection, 3) == [(number, NONE, first + number) for number in range(3)]
