"""A random history of one partition: a leader and followers with real logs, fetchers and frames, without sockets.

The controller acts at once and without errors: it elects leaders only from the in-sync replicas. Appends, fetches, lost
and damaged answers, leader changes, restarts, torn tails, DeleteRecords and retention happen in random order, and
`check` compares the logs after every step.
"""

import asyncio
import logging
import shutil
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any, Final, cast
from uuid import UUID

from kio.schema.list_offsets.v9.request import ListOffsetsRequest

from headrace.client.link import Answered, Link, LinkError
from headrace.clock import Clock
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.following.fetcher import Fetcher
from headrace.replication.following.fetcher_settings import FetcherSettings
from headrace.replication.following.partition import FollowedPartition
from headrace.replication.partition import Partition
from headrace.replication.producer_recovery import recover_producers
from headrace.replication.producer_state import ProducerState
from headrace.replication.throttle import ReplicationThrottle
from headrace.replication.verification import UNVERIFIED
from headrace.storage.log.config import LogConfig
from headrace.storage.log.indexes.txn_index import AbortedTransaction
from headrace.storage.log.log import Log
from headrace.storage.log.producers.open_transactions import OpenTransactions
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey, schema
from headrace.wire.batch import CRC_START, HEADER_SIZE, BatchHeader, batch_crc_ok
from headrace.wire.control import coordinator_epoch_of, marker_of
from headrace.wire.fetched import FETCH_VERSION, FetchLimits
from headrace.wire.records import RecordData, build_batch, iter_records
from tests.unit.replication.following.asking import AskingLink

NOW: Final = 1_700_000_000_000
TP: Final = TopicPartition("t", 0)
TOPIC_ID: Final = UUID(int=77)
REPLICAS: Final = 3
BACKOFF_S: Final = 1.0
_SESSION: Final = 41
_SETTLING_ROUNDS: Final = 30
"""1.5 times the most that any of the first 60 seeds needs."""

Batches = list[tuple[BatchHeader, bytes]]


class Replica:
    """One broker's copy: followed, or led."""

    def __init__(self, number: int, model: "Model") -> None:
        self.number = number
        self.model = model
        self.directory = model.directory / f"r{number}"
        self.directory.mkdir()
        self.checkpoint = 0
        """The high watermark that survives a restart."""
        self.partition: Partition | None = None
        self.followed: FollowedPartition | None = None
        self.open()

    @property
    def holder(self) -> Partition | FollowedPartition:
        holder = self.partition if self.partition is not None else self.followed
        assert holder is not None
        return holder

    @property
    def log(self) -> Log:
        return self.holder.log

    @property
    def high_watermark(self) -> int:
        if self.followed is not None:
            return self.followed.high_watermark
        return self.model.high_watermark

    @property
    def state(self) -> tuple[ProducerState, OpenTransactions]:
        return self.holder.producers, self.holder.transactions

    @property
    def version(self) -> tuple[object, ...]:
        """A value that changes with the replica."""
        log = self.log
        end = log.log_start_offset, self.high_watermark, log.log_end_offset
        return self.holder, *end, *log.leader_epochs.entries

    def open(self) -> None:
        """Start with the data on the disk."""
        config = self.model.config
        opened = Log.open(
            self.directory, TP, config, recovery_point=0, clean_shutdown=False, log_start_offset=0, now_ms=NOW
        )
        producers, transactions = recover_producers(opened, self.checkpoint)
        self.partition = None
        self.followed = FollowedPartition(
            opened,
            topic_id=TOPIC_ID,
            leader=-1,
            leader_epoch=-1,
            high_watermark=self.checkpoint,
            producers=producers,
            transactions=transactions,
        )
        self.fetcher = Fetcher(
            cast(Link, _LinkToLeader(self)),
            FetcherSettings(FetchLimits(0, 1, 1 << 20), 4000, BACKOFF_S, self.number, lambda: 9),
            self,
            ReplicationThrottle(window_count=11, window_s=1.0),
            Clock(lambda: NOW, lambda: self.model.time),
        )

    def lead(self, epoch: int) -> int:
        """Lead with the log and the state of the follower, and return its high watermark."""
        high_watermark = self.high_watermark
        if self.followed is not None:
            self.fetcher.forget([TP])
            producers, transactions = self.state
            self.partition = Partition(
                self.followed.log, topic_id=TOPIC_ID, leader_epoch=epoch, producers=producers, transactions=transactions
            )
            self.followed = None
        assert self.partition is not None
        self.partition.leader_epoch = epoch
        if self.model.random.random() < 0.5:  # as Kafka does; the epoch may then have no batch
            self.log.leader_epochs.assign(epoch, self.log.log_end_offset)
        return high_watermark

    def follow(self, leader: int, epoch: int) -> None:
        if self.partition is not None:
            producers, transactions = self.state
            self.followed = FollowedPartition(
                self.partition.log,
                topic_id=TOPIC_ID,
                leader=leader,
                leader_epoch=epoch,
                high_watermark=self.high_watermark,
                producers=producers,
                transactions=transactions,
            )
            self.partition = None
        assert self.followed is not None
        self.followed.leader, self.followed.leader_epoch = leader, epoch
        self.fetcher.follow([self.followed])

    # Callbacks of the fetcher

    async def flush(self, partitions: list[FollowedPartition]) -> list[tuple[FollowedPartition, str]]:
        for partition in partitions:
            partition.log.flusher.flush()
        return []

    def failed(self, partition: FollowedPartition, reason: str) -> None:
        self.model.failed.add(self.number)


class _LinkToLeader(AskingLink):
    """A link that asks the model's leader, and loses or damages some answers."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._session: dict[int, Any] = {}
        self._session_epoch = 0
        self._connected_to = -1
        self.is_ready = True

    def ask(self, api_key: int, version: int, body: bytearray, answered: Answered) -> None:
        self.is_ready = False  # so that a step ends with its reply
        super().ask(api_key, version, body, answered)

    async def _ask(self, api_key: int, version: int, body: bytearray, answered: Answered) -> None:
        await super()._ask(api_key, version, body, answered)
        self.is_ready = True

    async def exchange(self, api_key: int, version: int, body: bytearray) -> memoryview:
        model = self._replica.model
        request, _ = schema(ApiKey.FETCH, FETCH_VERSION).read_request(bytes(body), 0)
        if model.random.random() < model.loss:
            raise LinkError("lost request")
        answer = self._fetch(request)
        if model.random.random() < model.loss:
            raise LinkError("lost answer")
        out = bytearray()
        schema(ApiKey.FETCH, FETCH_VERSION).encode_response(out, answer)
        return memoryview(bytes(out))

    async def call(self, message: ListOffsetsRequest, version: int, reply_type: type) -> Any:
        model = self._replica.model
        if model.random.random() < model.loss:
            raise LinkError("lost")
        log = model.leading().log
        earliest = message.topics[0].partitions[0].timestamp == -2
        offset = log.log_start_offset if earliest else log.log_end_offset
        code = model.epoch_error(message.topics[0].partitions[0].current_leader_epoch)
        partition = {"partition_index": 0, "error_code": code, "timestamp": -1, "offset": offset, "leader_epoch": 0}
        out = bytearray()
        schema(ApiKey.LIST_OFFSETS, 9).encode_response(out, {"topics": [{"name": "t", "partitions": [partition]}]})
        from kio.serial import entity_reader

        return entity_reader(reply_type)(bytes(out), 0)[0]

    def _fetch(self, request: Any) -> dict[str, Any]:
        if self._connected_to != self._replica.model.leader:
            self._connected_to = self._replica.model.leader
            self._session_epoch = 0
        if request.session_epoch == 0:
            self._session = {}
        elif request.session_id != _SESSION or request.session_epoch != self._session_epoch:
            return {"error_code": ErrorCode.fetch_session_id_not_found, "session_id": 0, "responses": []}
        self._session_epoch = request.session_epoch + 1
        for topic in request.topics:
            self._session.update({item.partition: item for item in topic.partitions})
        for topic in request.forgotten_topics_data:
            for partition in topic.partitions:
                self._session.pop(partition, None)
        answers = [self._partition(item) for item in self._session.values()]
        topics = [{"topic_id": TOPIC_ID, "partitions": answers}] if answers else []
        return {"error_code": 0, "session_id": _SESSION, "responses": topics}

    def _partition(self, asked: Any) -> dict[str, Any]:
        model = self._replica.model
        log = model.leading().log
        answer = {
            "partition_index": 0,
            "error_code": model.epoch_error(asked.current_leader_epoch),
            "high_watermark": model.high_watermark,
            "log_start_offset": log.log_start_offset,
            "aborted_transactions": None,
            "records": b"",
        }
        if answer["error_code"]:
            return answer
        if asked.last_fetched_epoch >= 0:
            epoch, end_offset = log.leader_epochs.end_offset_for(asked.last_fetched_epoch)
            if epoch < 0:
                return {**answer, "error_code": ErrorCode.offset_out_of_range}
            if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
                return {**answer, "diverging_epoch": {"epoch": epoch, "end_offset": end_offset}}
        if not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
            return {**answer, "error_code": ErrorCode.offset_out_of_range}
        model.fetched(self._replica.number, asked.fetch_offset)
        return {**answer, "high_watermark": model.high_watermark, "records": self._records(log, asked.fetch_offset)}

    def _records(self, log: Log, offset: int) -> bytes:
        random = self._replica.model.random
        if random.random() < self._replica.model.damage:
            # a defective leader whose records begin too early
            offset = max(log.log_start_offset, offset - 1)
        part = log.reader.read(offset, random.choice((10, 300, 3000)), upto_offset=log.log_end_offset)
        data = bytearray(b"" if part is None else part.read())
        if len(data) > HEADER_SIZE and random.random() < self._replica.model.damage:
            # the checksum covers neither the offset nor the epoch
            data[random.randrange(CRC_START, min(len(data), HEADER_SIZE + 4))] ^= 1 << random.randrange(8)
        return bytes(data)


class Model:
    """The partition on all brokers, its controller and its producers."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.random = Random(seed)
        self.directory = directory
        self.config = LogConfig(
            segment_bytes=self.random.choice((700, 2000, 100_000)), index_interval_bytes=100, segment_index_bytes=4096
        )
        self.time = 0.0
        self.loss = 0.05
        self.damage = 0.02
        self.epoch = 0
        self.leader = 0
        self.high_watermark = 0
        self.in_sync = set(range(REPLICAS))
        self.failed: set[int] = set()
        """Replicas that a fetcher has stopped fetching."""
        self.committed: dict[int, bytes] = {}
        """All batches that were ever below the high watermark, by base offset."""
        self._checked: dict[int, tuple[object, ...]] = {}
        self._ends: dict[int, int] = {}
        self._epoch_start = 0
        self._serial = 0
        self.replicas = [Replica(number, self) for number in range(REPLICAS)]

    def leading(self) -> Replica:
        return self.replicas[self.leader]

    def epoch_error(self, epoch: int) -> ErrorCode:
        if epoch == self.epoch:
            return ErrorCode.none
        return ErrorCode.fenced_leader_epoch if epoch < self.epoch else ErrorCode.unknown_leader_epoch

    def fetched(self, number: int, offset: int) -> None:
        """Let the leader know the end of a follower."""
        self._ends[number] = offset
        if offset >= self.high_watermark and offset >= self._epoch_start:
            self.in_sync.add(number)
        self._advance()

    def _advance(self) -> None:
        followers = self.in_sync - {self.leader}
        reached = min([self.leading().log.log_end_offset, *(self._ends.get(number, 0) for number in followers)])
        if reached > self.high_watermark:
            for header, data in contents(self.leading().log, self.high_watermark):
                if header.next_offset <= reached:
                    self.committed[header.base_offset] = data
            self.high_watermark = reached

    # Steps

    async def run(self, steps: int) -> None:
        self._elect(0)
        for _ in range(steps):
            await self._step()
            self.check()
        await self.settle()

    async def _step(self) -> None:
        random = self.random
        match random.choices(
            ("fetch", "append", "marker", "elect", "restart", "tear", "shrink", "delete", "checkpoint"),
            (50, 30, 6, 5, 3, 3, 2, 3, 4),
        )[0]:
            case "fetch":
                await self._fetch(random.randrange(REPLICAS))
            case "append":
                self._append()
            case "marker":
                self._end_transaction()
            case "elect":
                self._elect(random.choice(sorted(self.in_sync)))
            case "restart":
                self._restart(random.randrange(REPLICAS))
            case "tear":
                self._tear()
            case "shrink":
                self.in_sync.discard(random.choice([number for number in range(REPLICAS) if number != self.leader]))
                self._advance()
            case "delete":
                self._delete_records()
            case "checkpoint":
                for replica in self.replicas:
                    replica.checkpoint = replica.high_watermark
                    replica.log.flusher.flush()

    async def _fetch(self, number: int) -> None:
        self.time += BACKOFF_S
        replica = self.replicas[number]
        if number == self.leader:
            return
        if number in self.failed:  # an operator would have to look
            self.failed.discard(number)
            replica.follow(self.leader, self.epoch)
        await replica.fetcher._step()

    def _append(self) -> None:
        random = self.random
        partition = self.leading().partition
        assert partition is not None
        producer_id = random.choice((-1, 10, 11, 12))
        numbers: dict[str, Any] = {}
        if producer_id >= 0:
            known = dict(partition.producers.items()).get(producer_id)
            epoch = 0 if known is None else known.epoch
            sequence = 0 if known is None else (known.last_sequence + 1)
            if random.random() < 0.05:
                epoch, sequence = epoch + 1, 0
            numbers = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
            if producer_id == 12:
                numbers["attributes"] = 0x10
        self._serial += 1
        records = [
            RecordData(b"k", b"%d" % self._serial + b"v" * random.choice((1, 100)), NOW + self._serial)
            for _ in range(random.choice((1, 1, 3)))
        ]
        try:
            partition.append_as_leader(build_batch(records, **numbers), now_ms=NOW, acks=1, guard=UNVERIFIED)
        except KafkaError as error:
            if error.code not in {ErrorCode.invalid_txn_state, ErrorCode.invalid_producer_epoch}:
                raise  # otherwise a transaction of an older producer epoch is still open
        self._advance()

    def _end_transaction(self) -> None:
        partition = self.leading().partition
        assert partition is not None
        known = dict(partition.producers.items()).get(12)
        if known is not None:
            partition.append_marker(
                12, known.epoch, commit=self.random.random() < 0.5, coordinator_epoch=1, now_ms=NOW + self._serial
            )
            self._advance()

    def _elect(self, number: int) -> None:
        self.epoch += 1
        for other, replica in enumerate(self.replicas):
            if other != number:
                replica.follow(number, self.epoch)
        self.high_watermark = self.replicas[number].lead(self.epoch)
        self.leader = number
        self._epoch_start = self.leading().log.log_end_offset
        self._ends.clear()
        self._advance()

    def _restart(self, number: int) -> None:
        """Kill a broker and restart it at once, with all its data but an old high watermark."""
        self.replicas[number].fetcher.forget([TP])
        self.replicas[number].open()
        if number == self.leader:
            self._elect(number)
        else:
            self.replicas[number].follow(self.leader, self.epoch)

    def _tear(self) -> None:
        """Remove the end of a broker's log. It is out of sync, because others have been elected meanwhile."""
        number = self.random.randrange(REPLICAS)
        others = self.in_sync - {number}
        if not others:
            return
        if number == self.leader:
            self._elect(self.random.choice(sorted(others)))
        self.in_sync.discard(number)
        replica = self.replicas[number]
        replica.fetcher.forget([TP])
        path = replica.log.segments.active.path
        size = path.stat().st_size
        with path.open("rb+") as file:
            file.truncate(self.random.randint(max(0, size - 800), size))
        replica.open()
        replica.follow(self.leader, self.epoch)
        self._advance()

    def _delete_records(self) -> None:
        log = self.leading().log
        log.advance_log_start(self.random.randint(log.log_start_offset, max(log.log_start_offset, self.high_watermark)))
        for replica in self.replicas:
            replica.log.apply_retention(NOW, replica.high_watermark)

    async def settle(self) -> None:
        """Fetch without faults until all replicas are equal."""
        self.loss = self.damage = 0.0
        self._checked.clear()
        for _ in range(_SETTLING_ROUNDS):
            for number in range(REPLICAS):
                await self._fetch(number)
            self.check()
            if self._is_settled():
                return
        raise AssertionError(f"the replicas do not become equal: {[self._summary(item) for item in self.replicas]}")

    def _is_settled(self) -> bool:
        leader = self.leading().log
        return all(
            (replica.log.log_end_offset, replica.high_watermark) == (leader.log_end_offset, leader.log_end_offset)
            and replica.log.log_start_offset >= leader.log_start_offset
            for replica in self.replicas
        )

    def _summary(self, replica: Replica) -> str:
        log = replica.log
        offsets = f"{log.log_start_offset}-{replica.high_watermark}-{log.log_end_offset}"
        return f"{replica.number}: {offsets} {log.leader_epochs.entries}"

    # Invariants

    def check(self) -> None:
        """Check all replicas that have changed since the last check. Raises AssertionError."""
        leader = self.leading()
        versions = {replica.number: (*replica.version, *leader.version[:3]) for replica in self.replicas}
        changed = [item for item in self.replicas if self._checked.get(item.number) != versions[item.number]]
        if not changed:
            return
        self._checked = versions
        batches = {replica.number: list(contents(replica.log)) for replica in {leader, *changed}}
        led = identities(leader.log, batches[self.leader])
        for base_offset, data in self.committed.items():
            if base_offset >= leader.log.log_start_offset:
                assert base_offset in led, f"committed records from offset {base_offset} are lost"
                assert led[base_offset] == data, f"the committed batch at offset {base_offset} has changed"
        for replica in changed:
            self._check_replica(replica, batches[replica.number], led)

    def _check_replica(self, replica: Replica, batches: Batches, led: dict[int, bytes]) -> None:
        log, number = replica.log, replica.number
        assert log.log_start_offset <= replica.high_watermark <= log.log_end_offset, self._summary(replica)
        known = identities(log, batches)
        common = min(replica.high_watermark, self.high_watermark)
        start = max(log.log_start_offset, self.leading().log.log_start_offset)
        next_offset = -1
        for header, data in batches:
            if header.next_offset <= log.log_start_offset:
                continue
            assert header.base_offset >= next_offset, f"replica {number}: offsets do not ascend at {header.base_offset}"
            next_offset = header.next_offset
            assert batch_crc_ok(data, 0, len(data)), f"replica {number} has a damaged batch at {header.base_offset}"
            if header.base_offset >= log.log_start_offset:
                epoch = log.leader_epochs.epoch_for(header.base_offset)
                assert epoch == header.partition_leader_epoch, (
                    f"replica {number}: {log.leader_epochs.entries}: {header}"
                )
        assert next_offset <= log.log_end_offset
        mine = {offset: data for offset, data in known.items() if start <= offset < common}
        theirs = {offset: data for offset, data in led.items() if start <= offset < common}
        assert mine == theirs, (
            f"replica {number} differs from {self.leader} below {common} at"
            f" {sorted(offset for offset in mine.keys() | theirs.keys() if mine.get(offset) != theirs.get(offset))}:"
            f" {[self._summary(item) for item in self.replicas]}"
        )
        self._check_state(replica, batches)

    def _check_state(self, replica: Replica, batches: Batches) -> None:
        """Compare the state of producers with a replay of the log."""
        log = replica.log
        producers, transactions = replica.state
        replayed, opened, aborted = replay(batches)
        state = {item.producer_id: item for item in producers.snapshot()}
        for item in replayed.snapshot():
            found = state.get(item.producer_id)
            assert found is not None, f"replica {replica.number} does not know producer {item.producer_id}"
            if item.last_offset < 0 <= found.last_offset < log.segments.first_offset:
                continue  # its batches are deleted, and only its marker is left
            assert (found.epoch, found.last_sequence, found.last_offset) == (
                item.epoch,
                item.last_sequence,
                item.last_offset,
            ), f"replica {replica.number}: producer {found}, not {item}"
        for producer_id in state.keys() - {item.producer_id for item in replayed.snapshot()}:
            assert state[producer_id].last_offset < log.segments.first_offset, f"unknown producer {state[producer_id]}"
        assert transactions.producer_ids() == opened.producer_ids() or log.segments.first_offset, (
            f"replica {replica.number}: open {transactions.producer_ids()}, not {opened.producer_ids()}"
        )
        indexed = [entry.last_offset for segment in log.segments.ordered for entry in segment.txn_index.read()]
        expected = [entry.last_offset for entry in aborted]
        assert indexed == expected or log.segments.first_offset, f"replica {replica.number}: {indexed}, not {expected}"


def contents(log: Log, offset: int | None = None) -> Iterable[tuple[BatchHeader, bytes]]:
    """Yield the batches from `offset` on, or all."""
    for segment, position, header in log.segments.batches(log.segments.first_offset if offset is None else offset):
        yield header, segment.file.pread(header.size, position)


def identities(log: Log, batches: Batches) -> dict[int, bytes]:
    """Return the bytes that must be equal by base offset: all of a batch, with epoch and checksum."""
    return {header.base_offset: data for header, data in batches if header.next_offset > log.log_start_offset}


def replay(batches: Batches) -> tuple[ProducerState, OpenTransactions, list[AbortedTransaction]]:
    """Read the state of producers from all batches, without snapshots."""
    producers, transactions = ProducerState(), OpenTransactions()
    aborted = []
    for header, data in batches:
        if header.is_control:
            record = next(iter(iter_records(data)))
            marker = marker_of(record.key)
            assert marker is not None
            producers.end_transaction(header, coordinator_epoch_of(record.value))
            entry = transactions.end_at(header.producer_id, header.base_offset, marker)
            if entry is not None:
                aborted.append(entry)
            continue
        producers.replay(header)
        if header.is_transactional:
            transactions.add(header)
    return producers, transactions, aborted


def play(seed: int, directory: Path, steps: int) -> None:
    """Play one seed. Raises AssertionError, with a note of the seed."""
    directory.mkdir()
    logging.disable(logging.CRITICAL)
    try:
        asyncio.run(Model(seed, directory).run(steps))
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    finally:
        logging.disable(logging.NOTSET)
        shutil.rmtree(directory)
