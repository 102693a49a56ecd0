"""Appends to a partition: a batch, and its result."""

from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar, final

from headrace.errors import KafkaError
from headrace.replication.batch_rules import PreparedBatch
from headrace.replication.verification import VerificationGuard
from headrace.types import Buffer
from headrace.wire.batch import BatchHeader

ALL_REPLICAS: Final = -1


class NoRoomError(KafkaError):
    """The disk is nearly full, and the broker has said so: not worth a line in the log for every batch."""


@final
class AppendResult(NamedTuple):
    """Where a batch stands; `log_append_time` in ms, -1 where the producer's own timestamps count."""

    base_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int


class Batch(Protocol):
    """A batch to append, with whatever else its sender keeps with it."""

    @property
    def records(self) -> bytes | PreparedBatch: ...
    @property
    def acks(self) -> int: ...
    @property
    def guard(self) -> VerificationGuard | None: ...


Appended: TypeAlias = AppendResult | KafkaError
"""What became of a batch."""


class Placed(NamedTuple):
    """A batch with the offsets that it is going to have."""

    header: BatchHeader
    batch: Buffer
    base_offset: int
    last_offset: int


P_contra = TypeVar("P_contra", contravariant=True)


class Completions(Protocol[P_contra]):
    """Those who wait for appends, and what brings records to the disk for them: see `purgatory`."""

    def flush(self, partition: P_contra) -> None:
        """Bring the log to the disk, with all that is appended to it before the loop turns; then call `flushed_to`."""

    def advanced(self, partition: P_contra) -> None:
        """The high watermark or the recovery point has risen."""

    def refuse(self, partition: P_contra, error: KafkaError) -> None:
        """The partition goes away, and nothing more is committed to it."""
