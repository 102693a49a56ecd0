"""The state-change log, like Kafka's: it records when this broker starts or stops leading or following partitions.

It has its own logger, and its own file if `headrace.state.change.log` is set.
"""

import logging
from collections.abc import Iterable
from typing import NamedTuple

from headrace.cluster.commands import StoppedReplica, UpdateMetadata
from headrace.errors import ErrorCode
from headrace.log_lines import LineFormatter
from headrace.replication.replica import Replica
from headrace.types import PartitionState
from headrace.wording import count

LOGGER = "headrace.state_change"

log = logging.getLogger(LOGGER)


class Issuer(NamedTuple):
    """The controller that sent a command."""

    id: int
    epoch: int

    def __str__(self) -> str:
        return f"controller {self.id}, epoch {self.epoch}"


class StateChanges:
    """Counts and logs the changes of this broker's partitions."""

    def __init__(self, *, is_logged: bool, path: str | None = None) -> None:
        """`path` is the log file, which may be rotated at any time. Raises OSError."""
        self._is_logged = is_logged or path is not None
        self._file: logging.Handler | None = None
        if path is not None:
            from logging.handlers import WatchedFileHandler

            self._file = WatchedFileHandler(path)
            self._file.setFormatter(LineFormatter("%(asctime)s %(levelname)-7s %(message)s"))
            log.addHandler(self._file)
            log.propagate = False
        self.elected = self.followed = 0
        """Number of times this broker began to lead or follow a partition, including under a new leader epoch."""

    def close(self) -> None:
        if self._file is not None:
            log.removeHandler(self._file)
            log.propagate = True
            self._file.close()

    def led(self, issuer: Issuer, state: PartitionState, replica: Replica) -> None:
        """Count and log that this broker leads the partition now."""
        self.elected += 1
        if self._is_logged:
            log.info(
                "Leader %s-%d starts at leader epoch %d from offset %d with partition epoch %d, high watermark %d,"
                " in-sync replicas %s, adding %s, removing %s (%s)",
                state.topic,
                state.partition,
                state.leader_epoch,
                replica.log_end_offset,
                state.partition_epoch,
                replica.high_watermark,
                list(state.isr),
                list(state.adding_replicas),
                list(state.removing_replicas),
                issuer,
            )

    def follows(self, issuer: Issuer, state: PartitionState, replica: Replica) -> None:
        """Count and log that this broker follows the partition now."""
        self.followed += 1
        if self._is_logged:
            log.info(
                "Follower %s-%d starts at leader epoch %d from offset %d with partition epoch %d and high watermark %d;"
                " its leader is %d (%s)",
                state.topic,
                state.partition,
                state.leader_epoch,
                replica.log_end_offset,
                state.partition_epoch,
                replica.high_watermark,
                state.leader,
                issuer,
            )

    def stopped(self, issuer: Issuer, replicas: Iterable[StoppedReplica]) -> None:
        """Log that these replicas have stopped, and which of them are deleted."""
        if self._is_logged:
            for stopped in replicas:
                change = "deleted" if stopped.delete else "stopped"
                log.info(
                    "Replica %s %s at leader epoch %d (%s)",
                    stopped.topic_partition,
                    change,
                    stopped.leader_epoch,
                    issuer,
                )

    def refused(self, issuer: Issuer, state: PartitionState, error: ErrorCode) -> None:
        """Log that the state of a partition was ignored."""
        if self._is_logged:
            log.info(
                "Ignored the state of %s-%d with leader %d, leader epoch %d and partition epoch %d: %s (%s)",
                state.topic,
                state.partition,
                state.leader,
                state.leader_epoch,
                state.partition_epoch,
                error.name,
                issuer,
            )

    def waits(self, issuer: Issuer, state: PartitionState) -> None:
        """Log that a partition is unchanged because its new leader is not alive."""
        if self._is_logged:
            log.info(
                "%s-%d is unchanged: its leader %d with leader epoch %d is not alive (%s)",
                state.topic,
                state.partition,
                state.leader,
                state.leader_epoch,
                issuer,
            )

    def updated(self, update: UpdateMetadata) -> None:
        """Log a change to the metadata that clients see."""
        if self._is_logged and (update.topics or update.deleted):
            log.info(
                "Metadata: %s changed, %d deleted (%s)",
                count(len(update.topics), "topic"),
                len(update.deleted),
                Issuer(update.controller_id, update.controller_epoch),
            )
