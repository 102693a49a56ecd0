"""A partition of `__consumer_offsets` on this broker, as the coordinator's runtime wants it."""

import time
from collections.abc import Iterator
from typing import Final

from headrace.replication.partition import Partition
from headrace.types import Buffer
from headrace.wire.records import batch_headers

_READ_BYTES: Final = 1024 * 1024


class PartitionLog:
    """Implements `runtime.CoordinatorLog` on a partition that this broker leads."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def append(self, batch: bytes) -> int:
        """Write one batch; the offset of its first record. Raises KafkaError."""
        appended = self._partition.append_as_leader(batch, now_ms=time.time_ns() // 1_000_000, internal=True)
        return appended.base_offset

    def batches(self) -> Iterator[Buffer]:
        """The whole log, in buffers of whole batches. Raises KafkaError(kafka_storage_error)."""
        offset = self._partition.log_start_offset
        while True:
            found = self._partition.log.read(offset, _READ_BYTES, upto_offset=self._partition.log_end_offset)
            data = b"" if found is None else found.read()
            last = None
            for _, header in batch_headers(data):
                last = header
            if last is None:
                return
            yield data
            offset = last.next_offset
