"""A partition of `__consumer_offsets` that loses its unflushed tail, refuses writes and is compacted."""

from collections.abc import Iterator

from headrace.coordinator.groups.records.codec import decode_key
from headrace.coordinator.groups.records.offsets import OffsetKey, decode_offset
from headrace.errors import ErrorCode, KafkaError
from headrace.types import Buffer
from headrace.wire.compression import Codec
from headrace.wire.records import RecordData, build_batch, iter_records


class CrashingLog:
    """Batches in append order."""

    def __init__(self) -> None:
        self._batches: list[tuple[int, bytes]] = []
        self._durable_count = 0
        """Number of batches that no crash loses."""
        self.end = 0
        self.refusal: ErrorCode | None = None
        self.committed: dict[OffsetKey, int] = {}
        """The committed offsets read from the log, to compare the coordinator with."""

    def append(self, batch: bytes, now_ms: int) -> int:
        if self.refusal is not None:
            raise KafkaError(self.refusal)
        base = self.end
        placed = bytearray(batch)
        placed[:8] = base.to_bytes(8, "big")
        self._batches.append((base, bytes(placed)))
        self.end += self._read(batch)
        return base

    def batches(self) -> Iterator[Buffer]:
        for _, batch in self._batches:
            yield batch

    def lose_tail(self, batches: int) -> None:
        """Lose the last `batches`, except compacted ones, as after a power loss."""
        count = max(len(self._batches) - batches, self._durable_count)
        if count < len(self._batches):
            self.end = self._batches[count][0]
            self._reset(self._batches[:count])

    def compact(self) -> None:
        """Keep the latest record of every key, and no tombstones. Compacted batches count as flushed, so that a crash
        cannot lose only part of an original batch.
        """
        latest: dict[bytes, tuple[int, RecordData]] = {}
        for base, batch in self._batches:
            for index, record in enumerate(iter_records(batch)):
                assert record.key is not None
                latest.pop(record.key, None)
                if record.value is not None:
                    latest[record.key] = (base + index, RecordData(record.key, record.value, record.timestamp))
        kept = []
        for offset, data in latest.values():
            kept.append((offset, build_batch([data], base_offset=offset, codec=Codec.NONE)))
        self._reset(kept)
        self._durable_count = len(kept)

    def _reset(self, batches: list[tuple[int, bytes]]) -> None:
        self._batches = batches
        self.committed = {}
        for _, batch in batches:
            self._read(batch)

    def _read(self, batch: bytes) -> int:
        count = 0
        for record in iter_records(batch):
            count += 1
            assert record.key is not None
            if record.key[1] > 1:
                continue
            key = decode_key(record.key)
            assert isinstance(key, OffsetKey)
            if record.value is None:
                self.committed.pop(key, None)
            else:
                self.committed[key] = decode_offset(record.value).offset
        return count
