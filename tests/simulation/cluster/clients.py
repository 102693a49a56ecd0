"""Producers and consumers of the simulated cluster. They find leaders in the metadata of any live broker."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Protocol, cast

from headrace.client.link import Link, LinkError
from headrace.cluster.image import NO_LEADER
from headrace.errors import ErrorCode
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey, request_encoder, response_reader
from headrace.wire.fetched import ENTRY, FETCH_VERSION, FetchLimits, encode_fetch, parse_fetch_reply
from headrace.wire.records import RecordData, batch_headers, build_batch
from tests.simulation.cluster.broker import address_of
from tests.simulation.cluster.loop import Process, ProcessLoop

_PRODUCE_VERSION: Final = 9
_TIMESTAMP: Final = 1_700_000_000_000
_BACKOFF_S: Final = 0.1
_REQUEST_TIMEOUT_MS: Final = 1000

RETRIABLE: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.request_timed_out,
        ErrorCode.leader_not_available,
        ErrorCode.kafka_storage_error,
    }
)


class ClientError(AssertionError):
    """A client got an invalid reply."""


class Cluster(Protocol):
    """The cluster as clients see it."""

    def leader_of(self, name: TopicPartition) -> int:
        """Return the leader according to some live broker."""

    def leads(self, name: TopicPartition, broker: int) -> bool:
        """Return True if the broker is the leader, and knows it."""

    def may_lack_records(self, name: TopicPartition) -> bool:
        """Return True for a partition that may have lost committed records, as after the failure of a disk."""

    def topic_id(self, topic: str) -> bytes: ...

    def read(self, name: TopicPartition, offset: int, data: bytes) -> None:
        """Check a batch that a consumer has read."""

    def acknowledged(self, name: TopicPartition, offset: int, values: list[bytes], acks: int) -> None:
        """Check an acknowledgement."""

    def note(self, text: str) -> None: ...


@dataclass
class Written:
    """The values of one producer in one partition."""

    acknowledged: dict[bytes, int] = field(default_factory=dict)
    """Offsets by value."""
    sent: list[bytes] = field(default_factory=list)


class Links:
    """A client's connections, one per broker."""

    def __init__(self, loop: ProcessLoop, client_id: str) -> None:
        self._loop = loop
        self._client_id = client_id
        self._links: dict[int, Link] = {}

    def to(self, broker: int) -> Link:
        link = self._links.get(broker)
        if link is None:
            link = self._links[broker] = Link(
                lambda: address_of(broker),
                client_id=self._client_id,
                loop=cast(asyncio.AbstractEventLoop, self._loop),
                api_versions=False,
                timeout_s=2.0,
            )
        return link


class Producer:
    """Writes until it is stopped. With a producer id it is idempotent, and retries batches until acknowledged."""

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        loop: ProcessLoop,
        random: Random,
        *,
        acks: int,
        producer_id: int,
        pause_s: float,
    ) -> None:
        self.name = name
        self.process = Process(name)
        self.acks = acks
        self.producer_id = producer_id
        self.written: dict[TopicPartition, Written] = {}
        self.is_stopped = False
        self.is_done = False
        self.pause_s = pause_s
        self._cluster = cluster
        self._loop = loop
        self._random = random
        self._links = Links(loop, name)
        self._serial = 0
        self._sequences: dict[TopicPartition, int] = {}

    async def run(self, partitions: Callable[[], Sequence[TopicPartition]]) -> None:
        while not self.is_stopped:
            await asyncio.sleep(self._random.expovariate(1 / self.pause_s))
            known = partitions()
            if known:
                await self._write(self._random.choice(known))
        self.is_done = True

    async def _write(self, name: TopicPartition) -> None:
        values = []
        for _ in range(self._random.choice((1, 1, 2, 3))):
            self._serial += 1
            values.append(b"%s-%d" % (self.name.encode(), self._serial))
        padding = b"." * self._random.choice((0, 20, 200))
        records = [RecordData(b"k", value + padding, _TIMESTAMP + self._serial) for value in values]
        sequence = self._sequences.get(name, 0)
        numbers: dict[str, Any] = {}
        if self.producer_id >= 0:
            numbers = {"producer_id": self.producer_id, "producer_epoch": 0, "base_sequence": sequence}
        batch = build_batch(records, **numbers)
        written = self.written.setdefault(name, Written())
        written.sent += values
        while not self._cluster.may_lack_records(name):
            leader = self._cluster.leader_of(name)
            answer = None if leader == NO_LEADER else await self._ask(leader, name, batch)
            if answer is not None:
                error, offset = answer
                if error is ErrorCode.none or error is ErrorCode.duplicate_sequence_number:
                    break
                is_expected = error in RETRIABLE or self._cluster.may_lack_records(name)
                if not is_expected and self._cluster.leads(name, leader):
                    # A former leader that does not know of its successor may lack the batches before this one.
                    raise ClientError(f"{self.name} gets {error.name} from {name} for sequence {sequence}")
            if self.producer_id < 0:
                return  # the producer does not know if the batch was written
            await asyncio.sleep(_BACKOFF_S)
        else:
            return
        if offset >= 0:
            self._cluster.acknowledged(name, offset, values, self.acks)
            if self.acks == -1:
                written.acknowledged.update({value: offset + delta for delta, value in enumerate(values)})
        self._sequences[name] = sequence + len(values)

    async def _ask(self, leader: int, name: TopicPartition, batch: bytes) -> tuple[ErrorCode, int] | None:
        """Return error and base offset; None without a reply."""
        body = bytearray()
        fields = {
            "acks": self.acks,
            "timeout": _REQUEST_TIMEOUT_MS,
            "topic_data": [
                {"name": name.topic, "partition_data": [{"index": name.partition, "records": batch}]},
            ],
        }
        request_encoder(ApiKey.PRODUCE, _PRODUCE_VERSION)(body, fields)
        try:
            reply = await self._links.to(leader).exchange(ApiKey.PRODUCE, _PRODUCE_VERSION, body)
        except LinkError:
            return None
        answer = response_reader(ApiKey.PRODUCE, _PRODUCE_VERSION)(bytes(reply), 0)[0]
        (partition,) = answer.responses[0].partition_responses
        return ErrorCode(partition.error_code), partition.base_offset


class Consumer:
    """Reads a partition from its leader; at the end, starts again from the beginning."""

    def __init__(self, name: TopicPartition, cluster: Cluster, loop: ProcessLoop, random: Random) -> None:
        self.process = Process(f"c{name.partition}")
        self._name = name
        self._cluster = cluster
        self._random = random
        self._links = Links(loop, "consumer")
        self.offset = 0

    async def run(self, start_of: Callable[[TopicPartition], int]) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(0.05, 0.6))
            leader = self._cluster.leader_of(self._name)
            if leader == NO_LEADER:
                continue
            try:
                await self._fetch(self._links.to(leader), start_of)
            except LinkError:
                continue
            if self._random.random() < 0.05:
                self.offset = start_of(self._name)

    async def _fetch(self, link: Link, start_of: Callable[[TopicPartition], int]) -> None:
        key = (self._cluster.topic_id(self._name.topic), self._name.partition)
        entry = ENTRY.pack(self._name.partition, -1, self.offset, -1, -1, 2000, 0)
        body = encode_fetch(FetchLimits(0, 1, 4000), (0, -1), {key: entry}, (), None)
        reply = parse_fetch_reply(await link.exchange(ApiKey.FETCH, FETCH_VERSION, body))
        for fetched in reply.partitions:
            if fetched.error_code == ErrorCode.offset_out_of_range:
                self.offset = max(0, fetched.log_start_offset)
                continue
            data = bytes(fetched.records)
            for position, header in batch_headers(data):
                if header.next_offset <= self.offset:
                    continue
                self._cluster.read(self._name, header.base_offset, data[position : position + header.size])
                self.offset = header.next_offset
