"""The state of the partitions that one fetcher copies from one leader: the next fetch, and the actions after a reply.

Pure: replies and outcomes of actions in, actions out. Follows Kafka's AbstractFetcherThread with truncation on fetch
(KIP-595): a follower fetches from its log end offset under its last epoch. If the leader's log has another history,
the reply names the point of divergence, and the follower truncates and fetches again.

    fetching   action: include in the next request        transition: to busy with a reply, to delayed with an error
    busy       action: append, truncate or reset the log  transition: to fetching when done, to delayed if that fails
    delayed    action: wait                               transition: to fetching after the back-off
"""

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from headrace.errors import ErrorCode
from headrace.replication.following.fetch_session import FetchSession, SessionRequest
from headrace.types import TopicPartition
from headrace.wire.fetched import ENTRY, FetchedPartition, FetchReply, PartitionKey


class Stage(Enum):
    """The stage of a partition."""

    FETCHING = "fetching"
    BUSY = "busy"
    DELAYED = "delayed"


class LogEnd(NamedTuple):
    """The fields of a request that describe a log; `last_epoch` is -1 if the log has none."""

    offset: int
    last_epoch: int
    log_start_offset: int


class Following:
    """A partition to fetch. `end` is the log end after the last request or action; `lag` (records) is None at first."""

    __slots__ = ("end", "key", "lag", "leader_epoch", "retry_at", "retry_s", "stage", "topic_partition")

    def __init__(self, topic_partition: TopicPartition, key: PartitionKey, leader_epoch: int, end: LogEnd) -> None:
        self.topic_partition = topic_partition
        self.key = key
        self.leader_epoch = leader_epoch
        self.end = end
        self.lag: int | None = None
        self.stage = Stage.FETCHING
        self.retry_at = 0.0
        self.retry_s = _FIRST_RETRY_S
        """Seconds to wait after the next error that is normal during a leader change."""


class Append(NamedTuple):
    """Append the records, and adopt the leader's high watermark and log start offset. Outcome: `appended`."""

    following: Following
    fetched: FetchedPartition


class Truncate(NamedTuple):
    """Truncate to the point of divergence; the leader's `epoch` ends at `end_offset`. Outcome: `moved`."""

    following: Following
    epoch: int
    end_offset: int


class Reset(NamedTuple):
    """Request the leader's offsets: the log's end is outside the leader's log. Outcome: `moved`."""

    following: Following


class Fail(NamedTuple):
    """The partition is not fetched until its leader epoch changes. `is_expected`: the epoch is about to change."""

    following: Following
    reason: str
    is_expected: bool


class Retry(NamedTuple):
    """The partition is fetched again later. `is_expected`: the error is normal after a leader change."""

    following: Following
    reason: str
    is_expected: bool
    wait_s: float


Action: TypeAlias = Append | Truncate | Reset | Fail | Retry

_FIRST_RETRY_S: Final = 0.025
_WHILE_METADATA_SPREADS: Final = frozenset(
    {
        ErrorCode.unknown_leader_epoch,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
    }
)


class FollowerState:
    """The partitions of one fetcher. Times are in seconds of a monotonic clock."""

    __slots__ = ("_by_key", "_delayed", "_max_bytes", "_partitions", "_throttled", "backoff_s", "session")

    def __init__(self, *, partition_max_bytes: int, backoff_s: float) -> None:
        self.session = FetchSession()
        self._partitions: dict[TopicPartition, Following] = {}
        self._by_key: dict[PartitionKey, Following] = {}
        self._delayed: dict[Following, None] = {}
        self._throttled: dict[Following, None] = {}
        self._max_bytes = partition_max_bytes
        self.backoff_s = backoff_s

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, following: object) -> bool:
        """Return True if `following` is still current: neither removed nor replaced under a new epoch."""
        return isinstance(following, Following) and self._partitions.get(following.topic_partition) is following

    def get(self, topic_partition: TopicPartition) -> Following | None:
        return self._partitions.get(topic_partition)

    def partitions(self) -> tuple[Following, ...]:
        return tuple(self._partitions.values())

    # Events

    def follow(self, topic_partition: TopicPartition, topic_id: bytes, leader_epoch: int, end: LogEnd) -> Following:
        """Start fetching a partition, or continue if its leader epoch has not changed."""
        known = self._partitions.get(topic_partition)
        key = (topic_id, topic_partition.partition)
        if known is not None and known.leader_epoch == leader_epoch and known.key == key:
            return known
        self.forget(topic_partition)
        following = Following(topic_partition, key, leader_epoch, end)
        self._partitions[topic_partition] = following
        self._by_key[key] = following
        self._fetch(following)
        return following

    def forget(self, topic_partition: TopicPartition) -> None:
        """Stop fetching a partition."""
        following = self._partitions.pop(topic_partition, None)
        if following is not None:
            del self._by_key[following.key]
            self._delayed.pop(following, None)
            self._throttled.pop(following, None)
            self.session.leave(following.key)

    def request(self, now: float, is_throttled: Callable[[TopicPartition], bool] | None) -> SessionRequest | None:
        """Return the next request; None if no partition can be fetched now.

        `is_throttled` is given while the quota is exceeded: then partitions for which it returns True are left out,
        unless they have caught up, so that they stay in sync.
        """
        if self._delayed:
            for following in [following for following in self._delayed if following.retry_at <= now]:
                self._delayed.pop(following, None)
                self._fetch(following)
        if self._throttled:
            throttled, self._throttled = self._throttled, {}
            for following in throttled:
                self._fetch(following)
        if is_throttled is not None:
            for following in self._partitions.values():
                if following.stage is Stage.FETCHING and following.lag != 0 and is_throttled(following.topic_partition):
                    self._throttled[following] = None
                    self.session.leave(following.key)
        return None if self.session.is_empty else self.session.next_request()

    def next_retry(self) -> float | None:
        """Return the time at which the first delayed partition is due; None if no partition is delayed."""
        return min((following.retry_at for following in self._delayed), default=None)

    def answered(self, reply: FetchReply, now: float) -> list[Action]:
        """Return the actions that a reply requires. Partitions with an action wait for its outcome."""
        if not self.session.answered(reply.session_id, reply.error_code):
            return []
        actions: list[Action] = []
        for fetched in reply.partitions:
            following = self._by_key.get(fetched.key)
            # The partition may have been removed, or its epoch replaced, since the request.
            if following is None or following.stage is not Stage.FETCHING or not self.session.is_current(fetched.key):
                continue
            actions.append(self._action(following, fetched, now))
        return actions

    def lost(self, now: float) -> None:
        """Record that a request got no usable reply."""
        self.session.failed()
        for following in self._partitions.values():
            if following.stage is Stage.FETCHING:
                self.delay(following, now)

    def appended(self, following: Following, end: LogEnd, high_watermark: int) -> None:
        """Record that the action Append has succeeded; `high_watermark` is the leader's."""
        following.lag = max(0, high_watermark - end.offset)
        following.retry_s = _FIRST_RETRY_S
        following.end = end
        self._fetch(following)

    def moved(self, following: Following, end: LogEnd) -> None:
        """Record that the log was truncated or reset."""
        following.end = end
        self._fetch(following)

    def failed(self, following: Following, end: LogEnd, now: float) -> None:
        """Record that an action has failed; the log now has this end."""
        following.end = end
        self.delay(following, now)

    def delay(self, following: Following, now: float, wait_s: float | None = None) -> None:
        """Fetch the partition again after `wait_s`, by default the back-off."""
        following.stage = Stage.DELAYED
        following.retry_at = now + (self.backoff_s if wait_s is None else wait_s)
        self._delayed[following] = None
        self._throttled.pop(following, None)
        self.session.leave(following.key)

    # Decisions

    def _fetch(self, following: Following) -> None:
        end = following.end
        following.stage = Stage.FETCHING
        entry = ENTRY.pack(
            following.key[1],
            following.leader_epoch,
            end.offset,
            end.last_epoch,
            end.log_start_offset,
            self._max_bytes,
            0,
        )
        self.session.want(following.key, entry)

    def _action(self, following: Following, fetched: FetchedPartition, now: float) -> Action:
        code = fetched.error_code
        if code == ErrorCode.none:
            following.stage = Stage.BUSY
            if fetched.diverging is not None:
                # Ignore the records and the high watermark before the truncation.
                return Truncate(following, *fetched.diverging)
            return Append(following, fetched)
        if code == ErrorCode.offset_out_of_range:
            following.stage = Stage.BUSY
            return Reset(following)
        if code == ErrorCode.fenced_leader_epoch:
            self.forget(following.topic_partition)
            return Fail(following, f"the leader has a newer epoch than {following.leader_epoch}; waiting for it", True)
        if code == ErrorCode.offset_moved_to_tiered_storage:
            self.forget(following.topic_partition)
            return Fail(following, "its first records are in tiered storage, which is not supported", False)
        if code not in _WHILE_METADATA_SPREADS:
            self.delay(following, now)
            return Retry(following, name_of(code), False, self.backoff_s)
        # Retry soon: the leader receives its epoch within milliseconds, and acks=all waits for this follower.
        wait_s = min(following.retry_s, self.backoff_s)
        following.retry_s = 2 * wait_s
        self.delay(following, now, wait_s)
        return Retry(following, name_of(code), True, wait_s)


def truncation_offset(end: tuple[int, int], log_end_offset: int, *, leader_epoch: int, leader_end_offset: int) -> int:
    """Return the offset to truncate to if the leader's `leader_epoch` ends at `leader_end_offset` (KIP-101, KIP-279).

    `end` is the follower's largest epoch up to that one, and its end offset: see `LeaderEpochs.end_offset_for`. If the
    follower does not have the leader's epoch, it keeps its log to the end of its own previous epoch, and fetches again.
    """
    epoch, end_offset = end
    if end_offset < 0:
        return min(leader_end_offset, log_end_offset)
    if epoch != leader_epoch:
        return min(end_offset, log_end_offset)
    return min(end_offset, leader_end_offset, log_end_offset)


def name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
