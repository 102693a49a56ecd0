"""A partition of `__consumer_offsets` as the group coordinator's log."""

from collections.abc import Iterator
from typing import Final

from headrace.replication.partition import Partition
from headrace.types import Buffer
from headrace.wire.records import batch_headers

NAME: Final = "__consumer_offsets"
_READ_BYTES: Final = 1024 * 1024


class OffsetsTopicLog:
    """Appends the coordinator's batches as the partition's leader, and reads them back."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def append(self, batch: bytes, now_ms: int) -> int:
        """Append a batch, and return its base offset. Raises KafkaError."""
        return self._partition.append_own(batch, now_ms)

    def batches(self) -> Iterator[Buffer]:
        """Yield the contents of the log as buffers of whole batches, about a megabyte each."""
        log = self._partition.log
        offset = log.log_start_offset
        while (part := log.reader.read(offset, _READ_BYTES, upto_offset=log.log_end_offset)) is not None:
            data = part.read()
            after = offset
            for _, header in batch_headers(data):
                after = header.next_offset
            yield data
            if after <= offset:
                return
            offset = after
