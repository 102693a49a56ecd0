"""Appends to a partition: a batch, and its result."""

from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar, final

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.batch_rules import PreparedBatch
from headrace.replication.verification import VerificationGuard
from headrace.types import Buffer
from headrace.wire.batch import BatchHeader

ALL_REPLICAS: Final = -1


class NoRoomError(KafkaError):
    """The disk is nearly full, which has been logged."""


@final
class AppendResult(NamedTuple):
    """The position of a batch; `log_append_time` in ms, -1 if the producer's timestamps were kept."""

    base_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int


class OfflineError(KafkaError):
    """The partition is offline, which has already been logged."""

    def __init__(self, topic: str, partition: int, reason: str) -> None:
        super().__init__(ErrorCode.kafka_storage_error, f"{topic}-{partition} is offline: {reason}")


class Batch(Protocol):
    """A batch to append."""

    @property
    def records(self) -> bytes | PreparedBatch: ...
    @property
    def acks(self) -> int: ...
    @property
    def guard(self) -> VerificationGuard | None: ...


Appended: TypeAlias = AppendResult | KafkaError
"""The result of an append, or its error."""


class Placed(NamedTuple):
    """A batch with its assigned offsets."""

    header: BatchHeader
    batch: Buffer
    base_offset: int
    last_offset: int


P_contra = TypeVar("P_contra", contravariant=True)


class Completions(Protocol[P_contra]):
    """Waits for appends, and starts flushes: see `purgatory`."""

    def flush(self, partition: P_contra) -> None:
        """Flush the log after the current iteration of the event loop, then call `flushed_to`."""

    def advanced(self, partition: P_contra) -> None:
        """Handle an advance of the high watermark or the recovery point."""

    def refuse(self, partition: P_contra, error: KafkaError) -> None:
        """Handle the removal of the partition."""
