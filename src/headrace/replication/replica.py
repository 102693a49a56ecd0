"""A partition on this broker, led or followed, as its readers see it."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID
from weakref import WeakMethod

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.growth import Growth
from headrace.replication.producer_state import ProducerState
from headrace.storage.files.log_file import FileSlice
from headrace.storage.log.log import Log
from headrace.storage.log.producers.open_transactions import OpenTransactions
from headrace.storage.log.producers.producer_snapshot import write_snapshot
from headrace.types import TopicPartition


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class OpenedLog:
    """A log that is open, and belongs to no partition yet, perhaps because its leader is dead."""

    log: Log
    topic_id: UUID
    producers: ProducerState
    transactions: OpenTransactions
    high_watermark: int
    """The last checkpointed high watermark."""
    configured: int = 0
    """`ReplicaManager._reconfigurations` when the log's config was read; -1 if the config may be older."""

    def __post_init__(self) -> None:
        self.log.state.producers_writer = WeakMethod(self.write_producer_snapshot)

    def write_producer_snapshot(self, offset: int) -> None:
        """Do the same as `Replica.write_producer_snapshot`."""
        snapshot_producers(self, offset)


class Replica:
    """A log, the state of its producers and transactions, and the high watermark."""

    __slots__ = (
        "__weakref__",
        "growth",
        "high_watermark",
        "leader_epoch",
        "log",
        "producers",
        "topic_id",
        "topic_partition",
        "transactions",
    )

    def __init__(
        self,
        log: Log,
        *,
        topic_id: UUID,
        leader_epoch: int,
        high_watermark: int,
        producers: ProducerState,
        transactions: OpenTransactions,
    ) -> None:
        self.log = log
        self.topic_partition: TopicPartition = log.topic_partition
        self.topic_id = topic_id
        self.leader_epoch = leader_epoch
        self.high_watermark = high_watermark
        self.producers = producers
        self.transactions = transactions
        self.growth: Growth[Any] = Growth(self)
        """Watchers of records that become visible to consumers."""

    @property
    def log_start_offset(self) -> int:
        return self.log.state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.state.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The end for read_committed consumers: the start of the oldest open transaction, or the high watermark."""
        first_open = self.transactions.first_offset
        if first_open is None:
            return self.high_watermark
        return min(max(first_open, self.log.state.log_start_offset), self.high_watermark)

    def visible_end(self, *, read_committed: bool) -> int:
        """Return the offset up to which a consumer may read (KIP-98)."""
        return self.last_stable_offset if read_committed else self.high_watermark

    def read(self, offset: int, max_bytes: int, *, read_committed: bool, min_one_batch: bool) -> FileSlice | None:
        """Return the region of the log that begins with the batch at `offset`; the last batch may be incomplete.

        Return None if nothing is available to consumers yet. Raises KafkaError as `LogReader.read` does.
        """
        return self._read(
            offset, max_bytes, self.visible_end(read_committed=read_committed), min_one_batch=min_one_batch
        )

    def _read(self, offset: int, max_bytes: int, end: int, *, min_one_batch: bool) -> FileSlice | None:
        log = self.log
        state = log.state
        if offset < state.log_start_offset or offset > state.log_end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"offset {offset} of {self.topic_partition} is out of range: the log starts at offset"
                f" {state.log_start_offset} and ends at offset {state.log_end_offset}",
            )
        if offset >= end:
            return None
        return log.reader.read(offset, max_bytes, upto_offset=end, min_one_batch=min_one_batch)

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Check a client's leader epoch, -1 for none (KIP-320).

        Raises KafkaError: fenced_leader_epoch for an older epoch, unknown_leader_epoch for a newer one.
        """
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        older = current_leader_epoch < self.leader_epoch
        raise KafkaError(
            ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch,
            f"{self.topic_partition} is at leader epoch {self.leader_epoch}, not {current_leader_epoch}",
        )

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to `leader_epoch` and its end offset; (-1, -1) if unknown (KIP-101, KIP-279)."""
        if leader_epoch == self.leader_epoch:
            return leader_epoch, self.log_end_offset
        return self.log.leader_epochs.end_offset_for(leader_epoch)

    @property
    def last_producer_id(self) -> int:
        """The largest known producer id; -1 if none is known."""
        return max(*self.producers.packed, *self.transactions.producer_ids(), -1, -1)

    def packed_producers(self) -> list[bytes]:
        """Return the producers' state for `write_snapshot`."""
        return self.transactions.snapshot_entries(self.producers.packed)

    def write_producer_snapshot(self, offset: int) -> None:
        """Write a snapshot of the producers at `offset`, from which the next start reads the log. Raises OSError."""
        snapshot_producers(self, offset)


def snapshot_producers(owner: Replica | OpenedLog, offset: int) -> None:
    """Write the producers' state at `offset`, from which the next start reads the log. Raises OSError."""
    entries = owner.transactions.snapshot_entries(owner.producers.packed)
    write_snapshot(owner.log.directory, offset, entries, sync=False)
