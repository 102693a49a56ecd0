"""The leader's view of a partition's replicas: the followers' log ends, the in-sync replicas and the high watermark.

Pure: fetches of followers, answers of the controller and times go in, proposed ISR changes and high watermarks
come out. The high watermark waits for a joining replica as soon as the change is proposed, and for a leaving one until
the controller has confirmed the change (KIP-497). With fewer in-sync replicas than `min.insync.replicas`, the high
watermark does not move (KIP-966).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol, final

from headrace.errors import ErrorCode, KafkaError

UNKNOWN_OFFSET: Final = -1
UNKNOWN_EPOCH: Final = -1
_NOT_APPLIED: Final = (ErrorCode.operation_not_attempted, ErrorCode.ineligible_replica)
"""The controller has not applied the change, and the partition epoch is current."""
_OUT_OF_DATE: Final = (
    ErrorCode.fenced_leader_epoch,
    ErrorCode.invalid_update_version,
    ErrorCode.new_leader_elected,
)
"""The controller has a newer state, and will send it."""
_UNKNOWN: Final = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id, ErrorCode.invalid_request)
"""The controller does not have this partition state, and will send its own."""


class Leadership(Protocol):
    """The fields of LeaderAndIsr for a partition that this broker leads."""

    @property
    def leader_epoch(self) -> int: ...
    @property
    def partition_epoch(self) -> int: ...
    @property
    def replicas(self) -> Sequence[int]: ...
    @property
    def isr(self) -> Sequence[int]: ...
    @property
    def adding_replicas(self) -> Sequence[int]: ...


@final
class Follower:
    """A follower's state, derived from its fetches. Offsets are -1 and times 0 before the first fetch."""

    __slots__ = (
        "broker_epoch",
        "caught_up_ms",
        "end_offset",
        "last_fetch_ms",
        "leader_end_at_fetch",
        "log_start_offset",
    )

    def __init__(self) -> None:
        self.end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_fetch_ms = 0
        self.leader_end_at_fetch = UNKNOWN_OFFSET
        """The leader's log end at the latest fetch."""
        self.caught_up_ms = 0
        """The latest time at which the follower had all records that the leader's log then had."""
        self.broker_epoch = UNKNOWN_EPOCH


class Proposal(NamedTuple):
    """An ISR change to send to the controller. `isr` contains broker ids and their epochs, -1 if unknown."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    is_expansion: bool

    @property
    def members(self) -> frozenset[int]:
        return frozenset(broker for broker, _ in self.isr)


class Committed(NamedTuple):
    """The state of a partition that the controller has confirmed."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]


class LeaderState:
    """What this broker, as the leader of a partition, knows of its replicas. Times are in ms of a monotonic clock."""

    __slots__ = (
        "_broker_id",
        "_is_alive",
        "_is_leaving",
        "_max_lag_ms",
        "_needs_newer",
        "epoch_start",
        "followers",
        "isr",
        "leader_epoch",
        "maximal_isr",
        "own_end",
        "partition_epoch",
        "pending",
    )

    def __init__(self, broker_id: int, *, max_lag_ms: Callable[[], int], is_alive: Callable[[int], bool]) -> None:
        """`max_lag_ms` returns `replica.lag.time.max.ms`, and `is_alive` False for a broker that is not registered."""
        self._broker_id = broker_id
        self._max_lag_ms = max_lag_ms
        self._is_alive = is_alive
        self._needs_newer = False
        """True if only a newer state may replace the pending change."""
        self._is_leaving = False
        """True if the ISR has a member that is no longer a replica: a reassignment is about to remove it."""
        self.leader_epoch = UNKNOWN_EPOCH
        self.partition_epoch = UNKNOWN_EPOCH
        self.epoch_start = UNKNOWN_OFFSET
        """The log end when the leader epoch began. A follower that has not reached it may lack committed records."""
        self.own_end = 0
        """The log end offset, or the end of the flushed records while a required flush is pending."""
        self.followers: dict[int, Follower] = {}
        self.isr: frozenset[int] = frozenset()
        """The in-sync replicas that the controller has confirmed."""
        self.maximal_isr: frozenset[int] = frozenset()
        """The in-sync replicas and those that may have joined: the high watermark waits for all of them."""
        self.pending: Proposal | None = None

    @property
    def replica_count(self) -> int:
        return len(self.followers) + 1

    def required_in_sync(self, min_insync_replicas: int) -> int:
        """Return the number of in-sync replicas that acks=all requires: at most all of them."""
        return min(min_insync_replicas, self.replica_count)

    # The controller

    def lead(self, state: Leadership, *, log_end: int, now_ms: int) -> bool:
        """Adopt a state from the controller. Return False if it is older than the known one."""
        if state.partition_epoch < self.partition_epoch:
            return False
        # Another broker may have led in an epoch that this one has missed, and followers may have truncated their logs.
        is_new_leader = self.leader_epoch == UNKNOWN_EPOCH or state.leader_epoch > self.leader_epoch + 1
        is_new_epoch = state.leader_epoch > self.leader_epoch
        if is_new_epoch or state.partition_epoch > self.partition_epoch or not self._needs_newer:
            self._commit(state.isr)
        # Otherwise this is the state on which the pending change is based, and the change may be applied already.
        known = {} if is_new_leader else self.followers
        self.followers = {
            replica: known.get(replica) or Follower() for replica in state.replicas if replica != self._broker_id
        }
        if is_new_epoch:
            for replica, follower in self.followers.items():
                self._begin_epoch(
                    follower, log_end, now_ms, is_in_sync=replica in self.isr, is_new_leader=is_new_leader
                )
            self.leader_epoch = state.leader_epoch
            self.epoch_start = log_end
        self.partition_epoch = state.partition_epoch
        self._note_leaving()
        return True

    def _note_leaving(self) -> None:
        self._is_leaving = not self.isr <= {self._broker_id, *self.followers}

    @staticmethod
    def _begin_epoch(follower: Follower, log_end: int, now_ms: int, *, is_in_sync: bool, is_new_leader: bool) -> None:
        """Restart the lag time of followers in the ISR; others must catch up before they may join."""
        since_ms = now_ms if is_in_sync else 0
        follower.caught_up_ms = since_ms
        follower.last_fetch_ms = 0 if is_new_leader else since_ms
        follower.leader_end_at_fetch = UNKNOWN_OFFSET if is_new_leader else log_end

    def confirmed(self, proposal: Proposal, committed: Committed) -> bool:
        """Handle the controller's confirmation. Return False if it is out of date."""
        if self.pending is not proposal:
            return False
        if committed.leader_epoch != self.leader_epoch or committed.partition_epoch < self.partition_epoch:
            return False
        self._commit(committed.isr)
        self.partition_epoch = committed.partition_epoch
        self._note_leaving()
        return True

    def refused(self, proposal: Proposal, error: ErrorCode) -> bool:
        """Handle a rejection. Return True if the proposal has to be sent again.

        The previous ISR is restored only if the controller has certainly not applied the change. Otherwise the change
        stays pending until it is sent again or LeaderAndIsr arrives.
        """
        if self.pending is not proposal:
            return False
        if error in _NOT_APPLIED:
            self._commit(self.isr)
            return False
        self._needs_newer = error not in _UNKNOWN
        return self._needs_newer and error not in _OUT_OF_DATE

    def _commit(self, isr: Iterable[int]) -> None:
        self.isr = self.maximal_isr = frozenset(isr)
        self.pending = None
        self._needs_newer = False

    # Followers

    def follower(self, replica: int) -> Follower:
        """Return a follower. Raises KafkaError(unknown_leader_epoch) if it has no replica in this epoch."""
        try:
            return self.followers[replica]
        except KeyError:
            raise KafkaError(
                ErrorCode.unknown_leader_epoch,
                f"broker {replica} has no replica of this partition in leader epoch {self.leader_epoch}",
            ) from None

    def fetched(
        self, replica: int, *, offset: int, log_start_offset: int, log_end: int, broker_epoch: int, now_ms: int
    ) -> bool:
        """Record a fetch at `offset`, the log end offset of the follower. Return True if it has changed.

        `log_end` is the leader's, read before any append that the reply may contain. Raises KafkaError:
        unknown_leader_epoch for a broker without a replica, not_leader_or_follower for an old broker epoch.
        """
        follower = self.follower(replica)
        if UNKNOWN_EPOCH != broker_epoch < follower.broker_epoch:
            raise KafkaError(
                ErrorCode.not_leader_or_follower,
                f"broker {replica} fetched with broker epoch {broker_epoch}, but its epoch is {follower.broker_epoch}",
            )
        if offset >= log_end:
            follower.caught_up_ms = max(follower.caught_up_ms, now_ms)
        elif offset >= follower.leader_end_at_fetch:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.last_fetch_ms)
        has_moved = offset != follower.end_offset
        follower.end_offset = offset
        follower.log_start_offset = log_start_offset
        follower.leader_end_at_fetch = max(follower.leader_end_at_fetch, log_end)
        follower.last_fetch_ms = now_ms
        follower.broker_epoch = broker_epoch
        return has_moved

    def was_idle(self, replica: int, until_ms: int) -> None:
        """Record that a follower was caught up and kept fetching until `until_ms`."""
        follower = self.followers.get(replica)
        if follower is not None:
            follower.caught_up_ms = max(follower.caught_up_ms, until_ms)
            follower.last_fetch_ms = max(follower.last_fetch_ms, until_ms)

    def is_caught_up(self, follower: Follower, log_end: int, now_ms: int) -> bool:
        """Return True if the follower is caught up, or was less than `replica.lag.time.max.ms` ago."""
        return follower.end_offset == log_end or now_ms - follower.caught_up_ms <= self._max_lag_ms()

    def low_watermark(self, log_start_offset: int) -> int:
        """Return the lowest log start offset of this replica and its live followers; -1 until all have reported one."""
        starts = (follower.log_start_offset for replica, follower in self.followers.items() if self._is_alive(replica))
        return min((log_start_offset, *starts))

    # Changes to the ISR

    def expand(self, replica: int, high_watermark: int) -> Proposal | None:
        """Propose to add a follower to the ISR; None if it may not join yet, or if another change is pending."""
        if self.pending is not None or replica in self.isr:
            return None
        if not self._may_join(self.followers[replica], high_watermark) or not self._is_alive(replica):
            return None
        self.maximal_isr = self.isr | {replica}
        return self._propose(self.maximal_isr, is_expansion=True)

    def _may_join(self, follower: Follower, high_watermark: int) -> bool:
        """Return True if the follower could be elected without a loss of committed records."""
        return follower.end_offset >= high_watermark and follower.end_offset >= self.epoch_start

    def shrink(self, log_end: int, now_ms: int) -> Proposal | None:
        """Propose to remove lagging followers; None if no follower lags or another change is pending."""
        if self.pending is not None:
            return None
        lagging = {
            replica
            for replica in self.isr
            if replica != self._broker_id and self._lags(self.followers.get(replica), log_end, now_ms)
        }
        # Keep the maximal ISR: the controller may reject the change, and elect one of the leaving replicas.
        return self._propose(self.isr - lagging, is_expansion=False) if lagging else None

    def _lags(self, follower: Follower | None, log_end: int, now_ms: int) -> bool:
        return follower is None or not self.is_caught_up(follower, log_end, now_ms)

    def _propose(self, isr: Iterable[int], *, is_expansion: bool) -> Proposal:
        epochs = tuple((replica, self._epoch_of(replica)) for replica in sorted(isr))
        self.pending = Proposal(self.leader_epoch, self.partition_epoch, epochs, is_expansion)
        self._needs_newer = True
        return self.pending

    def _epoch_of(self, replica: int) -> int:
        follower = self.followers.get(replica)
        return UNKNOWN_EPOCH if follower is None else follower.broker_epoch

    # The high watermark

    def has_enough_in_sync(self, min_insync_replicas: int) -> bool:
        """Return False if records with acks=all have to be rejected."""
        return len(self.isr) >= self.required_in_sync(min_insync_replicas)

    def committed_end(self, *, log_end: int, min_insync_replicas: int, now_ms: int) -> int:
        """Return the end of the records that all in-sync replicas have; -1 if it is unknown or must not be used.

        A follower outside the ISR counts while it keeps up: otherwise it could never reach the high watermark
        and join. The high watermark is the largest value ever returned.
        """
        if len(self.isr) < min_insync_replicas and not self.has_enough_in_sync(min_insync_replicas):
            return UNKNOWN_OFFSET
        if self._is_leaving:  # a new controller may still elect that member, which cannot fetch any more
            return UNKNOWN_OFFSET
        end = self.own_end
        for replica, follower in self.followers.items():
            if follower.end_offset < end and (
                replica in self.maximal_isr
                or (self.is_caught_up(follower, log_end, now_ms) and self._is_alive(replica))
            ):
                end = follower.end_offset
        return end
