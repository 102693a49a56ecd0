"""A Fetch request from its first read to its reply, with the wait for `min_bytes` in between."""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Final, Protocol

from headrace.broker.apis.fetch_answers import AT_ONCE, NO_LEADERS, OFTEN, Answered, encode, encode_in_steps
from headrace.broker.apis.fetch_news import SessionNews
from headrace.broker.apis.fetch_reads import Follower, follower_of
from headrace.broker.current_leader import CurrentLeader
from headrace.broker.fetch_session import NO_SESSION, FetchPartition, FetchSession, PartitionKey
from headrace.errors import ErrorCode
from headrace.promise import Promise
from headrace.replication.growth import UNKNOWN_SIZE, Growth
from headrace.replication.leading.led_replica import LedReplica
from headrace.replication.replica import Replica
from headrace.server.context import NO_REPLY, ClientInfo, RawReply, Reply
from headrace.server.large_requests import WaitingPartitions
from headrace.server.loop.turns import HEAVY, LIGHT, Turns
from headrace.slices import Steps, finish
from headrace.storage.files.log_file import FileSlice

_READ_COMMITTED: Final = 1
_RACKS: Final = 11
_CURRENT_LEADERS: Final = 16
_MANY_PARTITIONS: Final = 100
"""Fetches of more partitions reserve memory while they wait, and are then queued with the costly requests."""


class Reads(Protocol):
    """The members of `FetchApi` that a fetch uses."""

    loop: asyncio.AbstractEventLoop
    turns: Turns
    waiting: WaitingPartitions
    ending: asyncio.Lock
    """Serializes the replies to large fetches after their wait."""

    @property
    def max_bytes(self) -> int: ...

    def read(
        self,
        wanted: FetchPartition,
        max_bytes: int,
        *,
        read_committed: bool,
        min_one_batch: bool,
        rack: str = "",
        may_follow: bool = False,
        with_aborted: bool = True,
    ) -> Answered: ...

    def read_as_follower(
        self, wanted: FetchPartition, max_bytes: int, follower: Follower, *, is_new: bool, min_one_batch: bool
    ) -> Answered: ...

    def is_throttled(self, partition: Replica, follower: Follower) -> bool: ...

    def sent(self, answers: Iterable[Answered]) -> None: ...

    def leaders_of(self, answers: Iterable[Answered], listener: str) -> Mapping[FetchPartition, CurrentLeader]: ...


class Fetch:
    """One Fetch request, which reads its partitions at once, and again after a wait.

    A fetch of many partitions is read and answered in steps. While a fetch waits, it counts the bytes by which its
    partitions grow, so that the cost of an append does not depend on the number of partitions in the fetch.
    """

    __slots__ = (
        "_answered",
        "_api",
        "_bounds",
        "_bytes",
        "_client",
        "_follower",
        "_future",
        "_has_error",
        "_has_idle",
        "_is_cut",
        "_is_incremental",
        "_is_large",
        "_is_new",
        "_is_queued",
        "_max_bytes",
        "_max_wait",
        "_min_bytes",
        "_missing",
        "_news",
        "_rack",
        "_read_committed",
        "_reserved",
        "_room",
        "_session",
        "_timer",
        "_version",
        "_watched",
    )

    is_waiting: Final = False
    """False, because one turn always completes the fetch (see `TurnTaker.is_waiting`)."""

    def __init__(
        self,
        api: Reads,
        session: FetchSession,
        request: Any,
        version: int,
        client: ClientInfo,
        *,
        is_incremental: bool,
    ) -> None:
        self._api = api
        self._session = session
        self._version = version
        self._client = client
        self._is_incremental = is_incremental
        self._max_wait: float = request.max_wait.total_seconds()
        self._max_bytes = min(request.max_bytes, api.max_bytes)
        self._min_bytes: int = min(request.min_bytes, self._max_bytes)
        self._read_committed = request.isolation_level == _READ_COMMITTED
        self._follower = follower_of(request, version)
        if self._follower is not None:
            client.is_broker = True
        self._rack: str = request.rack_id if version >= _RACKS else ""
        self._is_new = True
        """True until the follower's log end offset has been recorded."""
        self._answered: list[Answered] = []
        self._bytes = 0
        self._has_error = False
        """True if the reply contains something other than records, and must not wait."""
        self._has_idle = False
        """True if a partition had no records to read, so that it may be watched instead."""
        self._is_cut = False
        """True if `max_bytes` may have cut off records; the next reply then begins with other partitions."""
        self._reserved = 0
        self._news: SessionNews | None = None
        """Watches the session's partitions. Without a session, the fetch watches its partitions itself."""
        if session.session_id != NO_SESSION:
            news = session.news
            if not isinstance(news, SessionNews):
                news = session.news = SessionNews(session, self._follower and self._follower.broker_id)
            self._news = news

    def collect(self) -> None:
        """Read all partitions that may have changed, up to the byte limits."""
        session = self._session
        self._bytes = 0
        self._has_error = False
        self._answered = []
        self._read(tuple(session.ready if self._is_incremental else session.partitions.values()))

    def _wanted(self) -> list[FetchPartition]:
        session = self._session
        return list(session.ready if self._is_incremental else session.partitions.values())

    def _read(self, partitions: Iterable[FetchPartition]) -> None:
        left = self._max_bytes - self._bytes
        for wanted in partitions:
            if left < wanted.max_bytes:
                self._is_cut = True
            answered = self._read_one(wanted, max(left, 0), is_new=self._is_new, min_one_batch=self._bytes == 0)
            self._answered.append(answered)
            _, error, _, part, diverging, _ = answered
            if part is None:
                self._has_idle = True
            else:
                self._bytes += part.size
                left -= part.size
            if error is not ErrorCode.none or diverging is not None or wanted.preferred_replica >= 0:
                self._has_error = True

    def _read_one(
        self, wanted: FetchPartition, max_bytes: int, *, is_new: bool, min_one_batch: bool, with_aborted: bool = True
    ) -> Answered:
        if self._follower is None:
            return self._api.read(
                wanted,
                max_bytes,
                read_committed=self._read_committed,
                min_one_batch=min_one_batch,
                rack=self._rack,
                may_follow=self._version >= _RACKS,
                with_aborted=with_aborted,
            )
        return self._api.read_as_follower(wanted, max_bytes, self._follower, is_new=is_new, min_one_batch=min_one_batch)

    def _collect_in_steps(self, partitions: list[FetchPartition], *, watch: bool = False) -> Steps[None]:
        """Like `collect`. With `watch`, count the growth of every partition after it has been read."""
        self._bytes = 0
        self._has_error = False
        self._answered = []
        for start in range(0, len(partitions), OFTEN):
            before = self._bytes
            self._read(partitions[start : start + OFTEN])
            if watch and not self.is_satisfied():
                self._missing -= self._bytes - before
                self._watch(self._answered[start:])
            yield

    def is_satisfied(self) -> bool:
        return (
            self._max_wait <= 0
            or self._bytes >= self._min_bytes
            or self._has_error
            or not (self._answered or self._session.partitions)
        )

    def in_steps(self) -> Steps[Reply | Awaitable[Reply]]:
        """Return the reply, or an awaitable of it."""
        self._prepare_wait()
        self._is_large = True
        may_wait = self._max_wait > 0 and self.may_wait()
        if not may_wait:
            self._max_wait = 0
        is_waiting = False
        if may_wait:
            self._client.give_up = self._end
        try:
            yield from self._collect_in_steps(self._wanted(), watch=may_wait)
            self._is_new = False
            if not self.is_satisfied() and self._missing > 0:
                is_waiting = True
                self._start_wait()
                return self._answer_after_wait()
        finally:
            if not is_waiting:
                self._stop_waiting(None)
        if not self.is_satisfied():
            # The partitions have grown enough since they were read.
            yield from self._collect_in_steps(self._wanted())
        return (yield from self._reply_in_steps())

    async def _answer_after_wait(self) -> Reply:
        await self._future
        async with self._api.ending:
            await finish(self._collect_in_steps(self._wanted()))
            return await finish(self._reply_in_steps())

    def may_wait(self) -> bool:
        """Reserve memory for the wait. Return False if there is too little: the fetch must be answered now."""
        size = len(self._session.ready if self._is_incremental else self._session.partitions)
        if size > _MANY_PARTITIONS:
            if not self._api.waiting.reserve(size):
                return False
            self._reserved = size
        return True

    def wait(self) -> Promise[Reply]:
        """Return a promise of the reply, which is sent when enough data is available or `max_wait` has passed."""
        self._prepare_wait()
        self._is_new = False
        self._missing -= self._bytes
        self._watch(self._answered)
        self._start_wait()
        return self._future

    def _prepare_wait(self) -> None:
        self._future: Promise[Reply] = Promise()
        self._timer: asyncio.TimerHandle | None = None
        self._missing = self._min_bytes
        self._is_large = False
        self._is_queued = False
        # The unused part of each partition's limit; partitions without data are missing.
        self._room: dict[Replica, int] = {}
        # The stable bounds of each partition when `_read_growth` last read it.
        self._bounds: dict[Replica, tuple[int, int]] = {}
        self._watched: list[Replica] = []

    def _watch(self, some: Iterable[Answered]) -> None:
        # Bind it once, but not to an attribute: a reference cycle would keep the files of deleted partitions open.
        grown = self._grown
        for answered in some:
            wanted, _, partition, part, _, _ = answered
            if partition is None:
                continue
            if part is not None:
                self._room[partition] = max(wanted.max_bytes - part.size, 0)
            if self._news is not None:
                self._news.watch(wanted, partition)
                continue
            self._watched.append(partition)
            self._growth(partition).add(grown)
        if self._news is not None:
            self._news.listeners[grown] = None

    def _growth(self, partition: Replica) -> Growth[Any]:
        if self._follower is not None and isinstance(partition, LedReplica):
            return partition.log_growth
        return partition.growth

    def _start_wait(self) -> None:
        self._answered = []
        self._timer = self._api.loop.call_later(self._max_wait, self._end)
        self._client.give_up = self._end
        self._future.add_done_callback(self._stop_waiting)
        if self._client.has_hung_up:
            self._end()

    def _grown(self, partition: Replica, size: int) -> None:
        """Count the growth of a partition. Called by an append, which must stay fast."""
        if self._is_queued or (self._follower is not None and self._api.is_throttled(partition, self._follower)):
            return
        room = self._room.get(partition)
        if room is None:
            wanted = self._session.partitions.get(self._key(partition))
            if wanted is None:
                return  # another request has changed the session
            room = wanted.max_bytes
        if size == UNKNOWN_SIZE:
            size = self._read_growth(partition, room)
        elif self._read_committed and partition.transactions.first_offset is not None and self._follower is None:
            if self._bounds.get(partition) == _stable_bounds(partition):
                return  # a read would find the same
            size = self._read_growth(partition, room)
        size = min(size, room)
        self._room[partition] = room - size
        self._missing -= size
        if self._missing <= 0:
            self._end()

    def _read_growth(self, partition: Replica, room: int) -> int:
        """Read the log, and return the uncounted bytes. Set `_missing` to 0 if the fetch must be answered now."""
        wanted = self._session.partitions.get(self._key(partition))
        if wanted is None:
            return 0
        self._bounds[partition] = _stable_bounds(partition)
        _, error, _, part, diverging, _ = self._read_one(
            wanted, wanted.max_bytes, is_new=False, min_one_batch=True, with_aborted=False
        )
        if error is not ErrorCode.none or diverging is not None:
            self._missing = 0
        if part is None:
            return 0
        if isinstance(part, FileSlice) and part.file is not partition.log.segments.active.file:
            self._missing = 0  # as in Kafka: one fetch cannot read beyond a segment
            return 0
        return part.size - (wanted.max_bytes - room)

    def _key(self, partition: Replica) -> PartitionKey:
        topic, index = partition.topic_partition
        return (partition.topic_id.int if self._session.uses_topic_ids else topic), index

    def _end(self) -> None:
        """Queue the reply, because many fetches may end their wait at the same time."""
        if self._timer is None:
            self._missing = 0  # the fetch has not started to wait
        elif not self._is_queued:
            self._is_queued = True
            kind = HEAVY if len(self._watched) > _MANY_PARTITIONS or self._is_large else LIGHT
            self._api.turns.add(self, kind, is_reply=self._follower is not None and kind == LIGHT)

    def take_turn(self) -> None:
        if self._future.done():
            return
        if self._is_large:
            self._future.set_result(NO_REPLY)  # the reply is sent in steps
            return
        try:
            self.collect()
            self._future.set_result(self.reply())
        except Exception as error:  # noqa: BLE001  the dispatcher awaits the reply and handles it
            self._future.set_exception(error)

    def _stop_waiting(self, _: object) -> None:
        self._client.give_up = None
        if self._timer is not None:
            self._timer.cancel()
        grown = self._grown
        if self._news is not None:
            self._news.listeners.pop(grown, None)
        for partition in self._watched:
            self._growth(partition).discard(grown)
        self._watched.clear()
        reserved, self._reserved = self._reserved, 0
        self._api.waiting.release(reserved)

    def reply(self) -> RawReply:
        """Encode the reply; an incremental one contains only changed partitions."""
        changed = [answered for answered in self._answered if self._has_changed(answered)]
        if self._follower is not None:
            self._api.sent(changed)
        if self._news is not None:
            self._news.remember(changed, is_cut=self._is_cut)
            if self._has_idle:
                self._news.settle(self._answered, read_committed=self._read_committed)
        return encode(
            changed,
            self._session.session_id,
            self._version,
            read_committed=self._read_committed,
            leaders=self._leaders(changed) if self._has_error else NO_LEADERS,
        )

    def _leaders(self, changed: list[Answered]) -> Mapping[FetchPartition, CurrentLeader]:
        if self._version < _CURRENT_LEADERS:
            return NO_LEADERS
        return self._api.leaders_of(changed, self._client.listener)

    def _reply_in_steps(self) -> Steps[RawReply]:
        changed: list[Answered] = []
        for start in range(0, len(self._answered), AT_ONCE):
            read = self._answered[start : start + AT_ONCE]
            some = [answered for answered in read if self._has_changed(answered)]
            if self._news is not None:
                self._news.remember(some, is_cut=self._is_cut)
                self._news.settle(read, read_committed=self._read_committed)
            changed += some
            yield
        if self._follower is not None:
            self._api.sent(changed)
        return (
            yield from encode_in_steps(
                changed,
                self._session.session_id,
                self._version,
                read_committed=self._read_committed,
                leaders=self._leaders(changed) if self._has_error else NO_LEADERS,
            )
        )

    def _has_changed(self, answered: Answered) -> bool:
        wanted, error, partition, part, diverging, _ = answered
        return (
            not self._is_incremental
            or part is not None
            or error is not ErrorCode.none
            or diverging is not None
            or wanted.preferred_replica >= 0
            or partition is None
            or partition.high_watermark != wanted.last_high_watermark
            or partition.log_start_offset != wanted.last_log_start_offset
        )


def _stable_bounds(partition: Replica) -> tuple[int, int]:
    """Return the offsets between which a read_committed consumer can read."""
    return partition.log.state.log_start_offset, partition.last_stable_offset
