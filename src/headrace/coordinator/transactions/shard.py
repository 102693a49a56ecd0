"""The transactional ids of one partition of `__transaction_state`. Only `replay` changes them. Pure."""

from collections.abc import Callable, Iterator

from headrace.coordinator.runtime.results import Result
from headrace.coordinator.transactions.machine import WriteMarkers, has_expired, has_timed_out, markers_of
from headrace.coordinator.transactions.records import decode_key, decode_value, encode_key, encode_value
from headrace.coordinator.transactions.states import TransactionMetadata, TransactionState
from headrace.errors import ErrorCode


class TransactionShard:
    """The transactional ids of a shard; `version` returns the cluster's `transaction.version`."""

    def __init__(self, version: Callable[[], int]) -> None:
        self._version = version
        self.ids: dict[str, TransactionMetadata] = {}
        self.ongoing: dict[str, None] = {}
        """Ids with an open transaction, which may time out; oldest first, except for loaded ones."""

    def __len__(self) -> int:
        return len(self.ids)

    def encode(self, name: str, metadata: TransactionMetadata | None) -> tuple[bytes, bytes | None]:
        if metadata is None:
            return encode_key(name), None
        return encode_key(name), encode_value(metadata, flexible=self._version() >= 1)

    def replay(self, name: str, metadata: TransactionMetadata | None, now_ms: int) -> None:  # noqa: ARG002
        if metadata is None:
            self.ids.pop(name, None)
            self.ongoing.pop(name, None)
            return
        self.ids[name] = metadata
        if metadata.state is TransactionState.ONGOING:
            self.ongoing[name] = None
        else:
            self.ongoing.pop(name, None)

    def replay_bytes(
        self,
        key: bytes,
        value: bytes | None,
        offset: int,  # noqa: ARG002
        *,
        now_ms: int,
        producer_id: int,  # noqa: ARG002
    ) -> bool:
        """Apply an encoded record. Return False if its type is unknown.

        Raises KafkaError: corrupt_message, unsupported_version; or UnicodeDecodeError.
        """
        name = decode_key(key)
        if name is None:
            return False
        self.replay(name, None if value is None else decode_value(name, value), now_ms)
        return True

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Do nothing: this log contains no transactions."""

    def loaded(self, now_ms: int) -> Iterator[tuple[str, list[WriteMarkers]]]:  # noqa: ARG002
        """Yield the markers of prepared transactions."""
        for name, metadata in list(self.ids.items()):
            if metadata.state.is_prepared:
                yield name, [markers_of(metadata)]

    def unloaded(self, error: ErrorCode, now_ms: int) -> Iterator[tuple[str, list[object]]]:  # noqa: ARG002
        """Yield nothing: no requests are parked."""
        yield from ()

    def timer_fired(self, name: str, timer: object, now_ms: int) -> Result[None]:  # noqa: ARG002
        """Do nothing: timeouts are checked periodically, as in Kafka."""
        return Result(None)

    def append_failed(self, name: str) -> None:
        """Do nothing: state changes only after writes."""

    def timed_out(self, now_ms: int) -> Iterator[str | None]:
        """Yield the ids whose transaction must be aborted, and None for all others, like `expired`."""
        for name in list(self.ongoing):
            metadata = self.ids.get(name)
            yield name if metadata is not None and has_timed_out(metadata, now_ms) else None

    def expired(self, expiration_ms: int, now_ms: int) -> Iterator[str | None]:
        """Yield ids to remove, and None for all others, so that the caller can pause."""
        for name in list(self.ids):
            metadata = self.ids.get(name)
            is_old = metadata is not None and has_expired(metadata, expiration_ms, now_ms)
            yield name if is_old else None
