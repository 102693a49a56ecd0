"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only changes.

Pure: the clock is passed in. A session keeps the last request and reply for every partition. Only partitions in
`ready` are read; `news` watches the others for changes.
"""

from collections.abc import Callable, Iterable
from random import Random
from typing import Final, Protocol, TypeAlias
from uuid import UUID

from headrace.errors import ErrorCode, KafkaError

NO_SESSION: Final = 0
FULL_EPOCH: Final = -1
"""Session epoch of a fetch outside any session."""
INITIAL_EPOCH: Final = 0
"""Session epoch of a full fetch that requests a new session."""
EVICTABLE_AFTER_MS: Final = 120_000
"""Idle time after which a session may be evicted for a new one."""
MAX_PARTITIONS: Final = 200_000
"""Maximum number of partitions in all sessions, about 100 MB. Further fetches get no session, as in Kafka when all
slots are taken: their clients must name all partitions in every request."""

READ_ALL_AFTER_MS: Final = 5000
"""Interval between reads of all partitions of a session: retention changes log start offsets without notifying it."""

PartitionKey: TypeAlias = tuple[str | int, int]
"""Topic name and partition. Since Fetch version 13, the topic id as an int, because Python hashes UUIDs slowly."""


class FetchPartition:
    """A client's latest request for a partition, and the offsets of the latest reply."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "last_fetched_epoch",
        "last_high_watermark",
        "last_log_start_offset",
        "log_start_offset",
        "max_bytes",
        "preferred_replica",
        "topic",
        "watched",
    )

    def __init__(self, topic: str | UUID, index: int) -> None:
        self.topic = topic
        self.index = index
        self.fetch_offset = 0
        self.max_bytes = 0
        self.current_leader_epoch = -1
        self.last_fetched_epoch = -1
        self.log_start_offset = -1
        """A follower's own log start offset."""
        self.last_high_watermark = -1
        self.last_log_start_offset = -1
        self.preferred_replica = -1
        """The broker that the client should read from; -1 for this one (KIP-392)."""
        self.watched: Callable[[], object | None] = _nothing
        """Returns the watched partition, if it still exists."""


def _nothing() -> None:
    return None


class News(Protocol):
    """Watches the partitions of a session, and adds those that have changed to `ready`."""

    def unwatch(self, wanted: FetchPartition) -> None: ...


class FetchSession:
    """The partitions of one fetcher, in the order in which they are served."""

    __slots__ = (
        "counted",
        "epoch",
        "is_followers",
        "isolation",
        "last_used_ms",
        "news",
        "partitions",
        "read_all_at_ms",
        "ready",
        "session_id",
        "uses_topic_ids",
    )

    def __init__(self, session_id: int, *, uses_topic_ids: bool) -> None:
        self.session_id = session_id
        self.epoch = 1
        self.last_used_ms = 0
        self.uses_topic_ids = uses_topic_ids
        self.partitions: dict[PartitionKey, FetchPartition] = {}
        self.ready: dict[FetchPartition, None] = {}
        """Partitions to read for the next reply, in this order."""
        self.news: News | None = None
        self.isolation = 0
        self.read_all_at_ms = 0
        """The first request after this time reads all partitions."""
        self.is_followers = False
        self.counted = 0
        """Number of partitions of this session that count towards the limit."""

    @property
    def is_kept(self) -> bool:
        """True if the client can use this session again."""
        return self.session_id != NO_SESSION

    def want(self, topic: str | UUID, index: int) -> FetchPartition:
        """Return a partition that the client requests, for the caller to update; add it if it is new.

        It will be read for the next reply.
        """
        key = (topic if isinstance(topic, str) else topic.int, index)
        wanted = self.partitions.get(key)
        if wanted is None:
            wanted = self.partitions[key] = FetchPartition(topic, index)
        self.ready[wanted] = None
        return wanted

    def forget(self, keys: Iterable[PartitionKey]) -> None:
        for key in keys:
            wanted = self.partitions.pop(key, None)
            if wanted is not None:
                self.ready.pop(wanted, None)
                if self.news is not None:
                    self.news.unwatch(wanted)

    def read_all(self, isolation: int, now_ms: int) -> None:
        """Make all partitions ready. Call this when `read_all_at_ms` has passed or the isolation level changes."""
        self.isolation = isolation
        self.read_all_at_ms = now_ms + READ_ALL_AFTER_MS
        self.ready = dict.fromkeys(self.partitions.values())

    def end(self) -> None:
        if self.news is not None:
            for wanted in self.partitions.values():
                self.news.unwatch(wanted)

    def served(self, partition: FetchPartition) -> None:
        """Move `partition` to the end, so that a busy one does not starve the others."""
        topic = partition.topic
        key = (topic if isinstance(topic, str) else topic.int, partition.index)
        if self.partitions.pop(key, None) is not None:
            self.partitions[key] = partition
            self.ready.pop(partition, None)
            self.ready[partition] = None


class FetchSessions:
    """The sessions of this broker, at most `max_sessions` (`max.incremental.fetch.session.cache.slots`)."""

    def __init__(self, max_sessions: int, random: Random) -> None:
        self._max_sessions = max_sessions
        self._random = random
        self._sessions: dict[int, FetchSession] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, session_id: int, epoch: int, *, uses_topic_ids: bool, now_ms: int, is_follower: bool = False
    ) -> tuple[FetchSession, bool]:
        """Return the session of a request, and True if the reply is incremental.

        If there is no room, a new session replaces an idle one; a follower's may also replace a consumer's. If no
        session can be replaced, the new one has id 0.

        Raises KafkaError: fetch_session_id_not_found, invalid_fetch_session_epoch, fetch_session_topic_id_error.
        """
        if epoch in (FULL_EPOCH, INITIAL_EPOCH):
            self.end(session_id)
            if epoch == FULL_EPOCH:
                return FetchSession(NO_SESSION, uses_topic_ids=uses_topic_ids), False
            return self._create(now_ms, uses_topic_ids=uses_topic_ids, is_follower=is_follower), False
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.invalid_fetch_session_epoch)
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(ErrorCode.fetch_session_topic_id_error)
        session.epoch = session.epoch + 1 if session.epoch < 0x7FFFFFFF else 1
        session.last_used_ms = now_ms
        # Move it to the end: the first session is the least recently used one.
        del self._sessions[session_id]
        self._sessions[session_id] = session
        return session, True

    def changed(self, session: FetchSession) -> None:
        """Count a session's partitions. Drop it if it has none, or if all sessions together exceed the limit."""
        count = len(session.partitions)
        if (count != session.counted or not count) and session.is_kept:
            if session.session_id in self._sessions:
                self._partitions += count - session.counted
                session.counted = count
            if not count or self._partitions > MAX_PARTITIONS:
                self.end(session.session_id)
                session.session_id = NO_SESSION

    def end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= session.counted
            session.end()

    def _create(self, now_ms: int, *, uses_topic_ids: bool, is_follower: bool) -> FetchSession:
        if len(self._sessions) >= self._max_sessions or self._partitions >= MAX_PARTITIONS:
            evictable = self._evictable(now_ms, is_follower=is_follower)
            if evictable is None:
                return FetchSession(NO_SESSION, uses_topic_ids=uses_topic_ids)
            self.end(evictable.session_id)
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._random.randint(1, 0x7FFFFFFF)
        session = FetchSession(session_id, uses_topic_ids=uses_topic_ids)
        session.last_used_ms = now_ms
        session.is_followers = is_follower
        self._sessions[session_id] = session
        return session

    def _evictable(self, now_ms: int, *, is_follower: bool) -> FetchSession | None:
        """Return the least recently used session that a new one may replace, if any."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is not None and now_ms - oldest.last_used_ms >= EVICTABLE_AFTER_MS:
            return oldest
        if not is_follower:
            return None
        return next((session for session in self._sessions.values() if not session.is_followers), None)
