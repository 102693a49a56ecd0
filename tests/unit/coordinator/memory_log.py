from collections.abc import Iterator

from headrace.coordinator.groups.records.classic import GroupKey, decode_group
from headrace.coordinator.groups.records.codec import Key, UnknownKey, Value, decode_key
from headrace.coordinator.groups.records.consumer import decode_value
from headrace.coordinator.groups.records.offsets import OffsetKey, decode_offset
from headrace.errors import ErrorCode, KafkaError
from headrace.types import Buffer
from headrace.wire.records import iter_records


class MemoryLog:
    """An in-memory partition of __consumer_offsets; appends raise `error` if it is set. `max_bytes` limits a batch."""

    def __init__(self, batches: list[bytes] | None = None) -> None:
        self.stored: list[bytes] = batches or []
        self.error: KafkaError | None = None
        self.max_bytes = 1 << 20
        self._end = 0

    def append(self, batch: bytes, now_ms: int) -> int:
        if self.error is not None:
            raise self.error
        if len(batch) > self.max_bytes:
            raise KafkaError(ErrorCode.message_too_large)
        placed = bytearray(batch)
        placed[:8] = self._end.to_bytes(8, "big")
        self.stored.append(bytes(placed))
        base = self._end
        self._end += len(list(iter_records(batch)))
        return base

    def batches(self) -> Iterator[Buffer]:
        yield from self.stored

    def records(self) -> list[tuple[Key, Value | None]]:
        out: list[tuple[Key, Value | None]] = []
        for batch in self.stored:
            for record in iter_records(batch):
                assert record.key is not None
                key = decode_key(record.key)
                if record.value is None:
                    out.append((key, None))
                elif isinstance(key, OffsetKey):
                    out.append((key, decode_offset(record.value)))
                elif isinstance(key, GroupKey):
                    out.append((key, decode_group(record.value)))
                else:
                    assert not isinstance(key, UnknownKey)
                    out.append((key, decode_value(key, record.value)))
        return out
