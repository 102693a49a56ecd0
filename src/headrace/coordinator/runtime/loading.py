"""Load a shard from its partition of an internal topic, in time slices."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from headrace.errors import KafkaError
from headrace.types import Buffer
from headrace.wire.batch import BatchHeader
from headrace.wire.control import Marker, marker_of
from headrace.wire.records import batch_headers, records_of, uncompressed_body

log = logging.getLogger(__name__)

_STEP: Final = 200


class Loadable(Protocol):
    """The methods of `shards.ShardState` that loading needs."""

    def replay_bytes(self, key: bytes, value: bytes | None, offset: int, *, now_ms: int, producer_id: int) -> bool: ...

    def end_transaction(self, producer_id: int, *, committed: bool) -> None: ...


def load(state: Loadable, batches: Iterable[Buffer], now_ms: Callable[[], int], name: str) -> Iterator[int]:
    """Replay `batches` (buffers of whole batches) into `state`. Yield the number of records and batches, at intervals.

    Raises KafkaError as `uncompressed_body` and `records_of` do; a bad record is logged and skipped.
    """
    count = 0
    for data in batches:
        for position, header in batch_headers(data):
            # An application with transactions leaves long runs of markers.
            count += 1
            if count % _STEP == 0:
                yield count
            body = uncompressed_body(header, data, position)
            if header.is_control:
                _end_transaction(state, header, body)
                continue
            producer_id = header.producer_id if header.is_transactional else -1
            for record in records_of(header, body):
                count += 1
                if count % _STEP == 0:
                    yield count
                if record.key is None:
                    continue
                try:
                    state.replay_bytes(
                        record.key, record.value, record.offset, now_ms=now_ms(), producer_id=producer_id
                    )
                except (KafkaError, UnicodeDecodeError) as error:
                    text = "%s: skipped the record at offset %d, so its group or transactional id may be outdated: %s"
                    log.error(text, name, record.offset, error)
    yield count


def _end_transaction(state: Loadable, header: BatchHeader, body: bytes) -> None:
    for record in records_of(header, body):
        marker = marker_of(record.key)
        if marker is not None:
            state.end_transaction(header.producer_id, committed=marker is Marker.COMMIT)
