"""What goes into an append and what becomes of it."""

from typing import Final, NamedTuple, Protocol, TypeAlias, final

from headrace.errors import KafkaError
from headrace.replication.batch_rules import PreparedBatch

ALL_REPLICAS: Final = -1
"""The `acks` that waits for every replica in sync."""


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


Appended: TypeAlias = AppendResult | KafkaError
"""What became of a batch."""
