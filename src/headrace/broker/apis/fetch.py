"""Fetch: the hot path out. An answer is headers encoded by hand and, unless they are small, regions of log files.

A fetch that finds less than `min_bytes` waits for its partitions to grow, at most `max_wait`. Layout of the answer:
https://kafka.apache.org/protocol#The_Messages_Fetch
"""

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any, Final
from uuid import UUID

from headrace.broker.fetch_session import FULL_EPOCH, FetchPartition, FetchSession, FetchSessions, PartitionKey
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.growth import UNKNOWN_SIZE
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager
from headrace.server.context import ClientInfo, Handler, RawReply, Reply, RequestContext
from headrace.server.turns import Turns
from headrace.storage.files.log_file import FileSlice
from headrace.wire.apis import ApiKey
from headrace.wire.encoder import put_count, put_string, put_unsigned_varint

COPIED_BYTES: Final = 4096
"""Regions up to this size are read and sent with what is round them: half the cost of `sendfile` between two sends."""
_FLEXIBLE: Final = 12
_TOPIC_IDS: Final = 13
_READ_COMMITTED: Final = 1
_MANY_PARTITIONS: Final = 100
"""A fetch of more partitions than this queues with costly requests when its wait ends."""

_INT32 = struct.Struct(">i")
_PARTITION = struct.Struct(">ihqqq")
"""Index, error, high watermark, last stable offset, log start offset (from version 5 on)."""
_HEAD_SESSION = struct.Struct(">ihi")
_DIVERGING = struct.Struct(">BBBiqB")
_ABORTED = struct.Struct(">qq")
"""Producer id and first offset of an aborted transaction."""

Answered = tuple[FetchPartition, ErrorCode, Partition | None, FileSlice | None, tuple[int, int] | None]


class FetchApi:
    """Handler of Fetch, and the sessions and waiting fetches behind it."""

    def __init__(
        self,
        replicas: ReplicaManager,
        topic_name: Callable[[UUID | None], str | None],
        *,
        loop: asyncio.AbstractEventLoop,
        max_sessions: int,
        max_bytes: int,
        turns: Turns | None = None,
    ) -> None:
        self._replicas = replicas
        self._topic_name = topic_name
        self.loop = loop
        self.turns = turns or Turns(loop.call_soon)
        self._max_bytes = max_bytes
        self._sessions = FetchSessions(max_sessions, Random())

    def routes(self) -> dict[ApiKey, Handler]:
        return {ApiKey.FETCH: self.fetch}

    def fetch(self, context: RequestContext, request: Any) -> Reply | Awaitable[Reply]:
        """Answer at once when there is enough, an error, or no time to wait."""
        version = context.api_version
        session, is_incremental = self._session(request, version)
        fetch = _Fetch(self, session, request, version, is_incremental=is_incremental)
        fetch.collect()
        if fetch.is_satisfied():
            return fetch.reply()
        return fetch.wait(context.client)

    def _session(self, request: Any, version: int) -> tuple[FetchSession, bool]:
        session_id = getattr(request, "session_id", 0)
        epoch = getattr(request, "session_epoch", FULL_EPOCH)
        uses_topic_ids = version >= _TOPIC_IDS
        now_ms = time.monotonic_ns() // 1_000_000
        session, is_incremental = self._sessions.begin(session_id, epoch, uses_topic_ids=uses_topic_ids, now_ms=now_ms)
        session.put(_wanted(request, version))
        if is_incremental:
            session.forget(
                (topic.topic_id if uses_topic_ids else topic.topic, index)
                for topic in request.forgotten_topics_data
                for index in topic.partitions
            )
        if session.is_kept and not session.partitions:
            self._sessions.end(session.session_id)
            session.session_id = 0
        return session, is_incremental

    def read(self, wanted: FetchPartition, max_bytes: int, *, read_committed: bool, min_one_batch: bool) -> Answered:
        """What there is for one partition now, or the error."""
        partition: Partition | None = None
        try:
            name = wanted.topic if isinstance(wanted.topic, str) else self._topic_name(wanted.topic)
            if name is None:
                raise KafkaError(ErrorCode.unknown_topic_id)
            partition = self._replicas.get(name, wanted.index)
            partition.check_leader_epoch(wanted.current_leader_epoch)
            if wanted.last_fetched_epoch >= 0:
                epoch, end = partition.end_offset_for_epoch(wanted.last_fetched_epoch)
                if epoch < 0:
                    raise KafkaError(ErrorCode.offset_out_of_range)
                if epoch < wanted.last_fetched_epoch or end < wanted.fetch_offset:
                    return wanted, ErrorCode.none, partition, None, (epoch, end)
            part = partition.read(
                wanted.fetch_offset,
                min(max_bytes, wanted.max_bytes),
                read_committed=read_committed,
                min_one_batch=min_one_batch,
            )
        except KafkaError as error:
            self._replicas.tell_damage(error)
            return wanted, error.code, partition, None, None
        return wanted, ErrorCode.none, partition, part, None

    @property
    def max_bytes(self) -> int:
        """Most bytes of one answer (`fetch.max.bytes` of the broker)."""
        return self._max_bytes


class _Fetch:
    """One Fetch request: collected once, and again when its wait ends.

    While it waits it counts the bytes by which its partitions grow, so that an append costs the same however many
    partitions a fetch is about.
    """

    __slots__ = (
        "_answered",
        "_api",
        "_bytes",
        "_client",
        "_future",
        "_grown_callback",
        "_has_error",
        "_is_incremental",
        "_is_queued",
        "_max_bytes",
        "_max_wait",
        "_min_bytes",
        "_missing",
        "_news",
        "_read_committed",
        "_room",
        "_session",
        "_timer",
        "_version",
        "_watched",
    )

    is_waiting: Final = False
    """After its turn in the queue nothing is left to do."""

    def __init__(
        self, api: FetchApi, session: FetchSession, request: Any, version: int, *, is_incremental: bool
    ) -> None:
        self._api = api
        self._session = session
        self._version = version
        self._is_incremental = is_incremental
        self._max_wait: float = request.max_wait.total_seconds()
        self._max_bytes = min(request.max_bytes, api.max_bytes)
        self._min_bytes: int = min(request.min_bytes, self._max_bytes)
        self._read_committed = request.isolation_level == _READ_COMMITTED
        self._answered: list[Answered] = []
        self._bytes = 0
        self._has_error = False

    def collect(self, partitions: Iterable[FetchPartition] | None = None) -> None:
        """Read every partition, or these, as far as the limits allow."""
        left = self._max_bytes
        self._bytes = 0
        self._has_error = False
        self._answered = []
        for wanted in self._session.partitions.values() if partitions is None else partitions:
            answered = self._api.read(
                wanted, max(left, 0), read_committed=self._read_committed, min_one_batch=self._bytes == 0
            )
            self._answered.append(answered)
            part = answered[3]
            if part is not None:
                self._bytes += part.size
                left -= part.size
            if answered[1] is not ErrorCode.none or answered[4] is not None:
                self._has_error = True

    def is_satisfied(self) -> bool:
        """Decide whether to answer at once."""
        return self._max_wait <= 0 or self._bytes >= self._min_bytes or self._has_error or not self._answered

    def wait(self, client: ClientInfo) -> "asyncio.Future[Reply]":
        """The answer, once there is enough or the time is up."""
        loop = self._api.loop
        self._future = loop.create_future()
        self._missing = self._min_bytes - self._bytes
        self._is_queued = False
        # What is left of each partition's limit; of a partition that has neither bytes nor grown, all.
        self._room: dict[Partition, int] = {}
        self._news: dict[PartitionKey, FetchPartition] = {}
        self._watched: list[Partition] = []
        self._grown_callback = self._grown
        for answered in self._answered:
            wanted, _, partition, part, _ = answered
            if partition is None:
                continue
            if part is not None:
                self._room[partition] = max(wanted.max_bytes - part.size, 0)
            if self._is_incremental and self._is_news(answered):
                self._news[wanted.topic, wanted.index] = wanted
            self._watched.append(partition)
            partition.growth.add(self._grown_callback)
        self._answered = []
        self._timer = loop.call_later(self._max_wait, self._end)
        self._client = client
        client.give_up = self._end
        self._future.add_done_callback(self._stop_waiting)
        return self._future

    def _grown(self, partition: Partition, size: int) -> None:
        """Count what a partition has grown by; called during an append, which must not be held up."""
        if self._is_queued:
            return
        room = self._room.get(partition)
        if room is None:
            key = self._key(partition)
            wanted = self._session.partitions.get(key)
            if wanted is None:
                return  # another request has changed the session
            room = wanted.max_bytes
            if self._is_incremental:
                self._news[key] = wanted
        if size == UNKNOWN_SIZE or (self._read_committed and partition.transactions.first_offset is not None):
            size = self._look(partition, room)
        size = min(size, room)
        self._room[partition] = room - size
        self._missing -= size
        if self._missing <= 0:
            self._end()

    def _look(self, partition: Partition, room: int) -> int:
        """The bytes in addition to those counted, read from the log; all that are missing for a reason to answer."""
        wanted = self._session.partitions.get(self._key(partition))
        if wanted is None:
            return 0
        _, error, _, part, diverging = self._api.read(
            wanted, wanted.max_bytes, read_committed=self._read_committed, min_one_batch=True
        )
        if error is not ErrorCode.none or diverging is not None:
            self._missing = 0
        if part is None:
            return 0
        if part.file is not partition.log.segments.active.file:
            self._missing = 0  # as in Kafka: the rest of an older segment is all that can be read at once
        return part.size - (wanted.max_bytes - room)

    def _key(self, partition: Partition) -> PartitionKey:
        topic, index = partition.topic_partition
        return (partition.topic_id if self._session.uses_topic_ids else topic), index

    def _end(self) -> None:
        """Answer with what there is, in a turn of its own: many may end their wait together."""
        if not self._is_queued:
            self._is_queued = True
            self._api.turns.add(self, is_heavy=len(self._watched) > _MANY_PARTITIONS)

    def take_turn(self) -> None:
        """Read what is new, and answer."""
        if self._future.done():
            return
        try:
            self.collect(list(self._news.values()) if self._is_incremental else None)
            self._future.set_result(self.reply())
        except Exception as error:  # noqa: BLE001  answered, and logged, as that of a handler
            self._future.set_exception(error)

    def _stop_waiting(self, _: object) -> None:
        self._client.give_up = None
        self._timer.cancel()
        for partition in self._watched:
            partition.growth.discard(self._grown_callback)
        self._watched.clear()

    def reply(self) -> RawReply:
        """The encoded answer; in an incremental one, only of partitions that have something new."""
        told = [answered for answered in self._answered if self._is_news(answered)]
        if self._session.is_kept:
            for wanted, error, partition, part, _ in told:
                if error is not ErrorCode.none:
                    wanted.told_high_watermark = -1  # the end of the error is news
                elif partition is not None:
                    wanted.told_high_watermark = partition.high_watermark
                    wanted.told_log_start_offset = partition.log_start_offset
                if part is not None:
                    self._session.served(wanted)
        return _encode(told, self._session.session_id, self._version, read_committed=self._read_committed)

    def _is_news(self, answered: Answered) -> bool:
        wanted, error, partition, part, diverging = answered
        return (
            not self._is_incremental
            or part is not None
            or error is not ErrorCode.none
            or diverging is not None
            or partition is None
            or partition.high_watermark != wanted.told_high_watermark
            or partition.log_start_offset != wanted.told_log_start_offset
        )


def _wanted(request: Any, version: int) -> list[FetchPartition]:
    wanted = []
    for topic in request.topics:
        name = topic.topic_id if version >= _TOPIC_IDS else topic.topic
        if name is None:
            name = UUID(int=0)
        for partition in topic.partitions:
            item = FetchPartition(name, partition.partition)
            item.fetch_offset = partition.fetch_offset
            item.max_bytes = partition.partition_max_bytes
            if version >= 9:
                item.current_leader_epoch = partition.current_leader_epoch
                if version >= _FLEXIBLE:
                    item.last_fetched_epoch = partition.last_fetched_epoch
            wanted.append(item)
    return wanted


def _encode(told: list[Answered], session_id: int, version: int, *, read_committed: bool) -> RawReply:
    parts: list[bytes | bytearray | FileSlice] = []
    out = bytearray()
    if version >= 7:
        out += _HEAD_SESSION.pack(0, 0, session_id)
    else:
        out += _INT32.pack(0)
    flexible = version >= _FLEXIBLE
    by_topic: dict[str | UUID, list[Answered]] = {}
    for answered in told:
        by_topic.setdefault(answered[0].topic, []).append(answered)
    put_count(out, len(by_topic), flexible=flexible)
    for topic, partitions in by_topic.items():
        if isinstance(topic, UUID):
            out += topic.bytes
        else:
            put_string(out, topic, flexible=flexible)
        put_count(out, len(partitions), flexible=flexible)
        for answered in partitions:
            part = answered[3]
            _put_partition(out, answered, version, read_committed=read_committed)
            if part is not None and (part.size > COPIED_BYTES or not _copy(part, out)):
                parts.append(out)
                parts.append(part)
                out = bytearray()
            if flexible:
                _put_tags(out, answered[4])
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    parts.append(out)
    return RawReply(parts)


def _copy(part: FileSlice, out: bytearray) -> bool:
    """Append the region's bytes; False, and nothing, when the file is shorter than it was (the sender tells)."""
    records = part.read()
    if len(records) != part.size:
        return False
    out += records
    return True


def _put_partition(out: bytearray, answered: Answered, version: int, *, read_committed: bool) -> None:
    wanted, error, partition, part, _ = answered
    size = 0 if part is None else part.size
    if partition is None or error is not ErrorCode.none:
        offsets = (-1, -1, -1)
    else:
        offsets = (partition.high_watermark, partition.last_stable_offset, partition.log_start_offset)
    fixed = _PARTITION.pack(wanted.index, error.value, *offsets)
    out += fixed if version >= 5 else fixed[:-8]
    # Aborted transactions: a list where read_committed read something and for what is not here, null otherwise.
    has_list = partition is None or (read_committed and error is ErrorCode.none)
    aborted = (
        partition.log.reader.aborted_transactions(wanted.fetch_offset, part)
        if read_committed and part is not None and partition is not None
        else ()
    )
    if version >= _FLEXIBLE:
        if aborted:
            put_unsigned_varint(out, len(aborted) + 1)
            for each in aborted:
                out += _ABORTED.pack(each.producer_id, each.first_offset)
                out.append(0)
        else:
            out += b"\x01" if has_list else b"\x00"
        out += b"\xff\xff\xff\xff"
        put_unsigned_varint(out, size + 1)
    else:
        out += _INT32.pack(len(aborted)) if has_list else b"\xff\xff\xff\xff"
        for each in aborted:
            out += _ABORTED.pack(each.producer_id, each.first_offset)
        if version >= 11:
            out += b"\xff\xff\xff\xff"
        out += _INT32.pack(size)


def _put_tags(out: bytearray, diverging: tuple[int, int] | None) -> None:
    if diverging is None:
        out.append(0)
    else:
        # One tagged field, number 0, 13 bytes: the epoch, its end offset, no tags of its own (KIP-595).
        out += _DIVERGING.pack(1, 0, 13, *diverging, 0)
