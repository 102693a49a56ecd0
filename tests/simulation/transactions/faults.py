"""Faults injected into the transaction coordinator, which the simulation must find."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from headrace.coordinator import endings
from headrace.coordinator.transaction_coordinator import TransactionCoordinator
from headrace.coordinator.transactions import machine
from headrace.coordinator.transactions.shard import TransactionShard
from headrace.coordinator.transactions.states import ProducerIdentity, TransactionMetadata, TransactionState
from headrace.errors import ErrorCode, KafkaError
from tests.simulation.acts import replaced
from tests.simulation.transactions.partitions import StateLog


def _marker_is_missing() -> AbstractContextManager[None]:
    def make(markers_of: Any) -> Any:
        def fewer(metadata: TransactionMetadata) -> Any:
            markers = markers_of(metadata)
            return machine.WriteMarkers(
                markers.producer, markers.commit, frozenset(sorted(markers.partitions)[1:]), markers.client_version
            )

        return fewer

    return replaced(machine, "markers_of", make)


def _reply_before_the_commit() -> AbstractContextManager[None]:
    return replaced(TransactionCoordinator, "committed", lambda _: lambda *__: None)


def _markers_before_the_commit() -> AbstractContextManager[None]:
    def make(committed: Any) -> Any:
        def hasty(log: Any) -> Any:
            is_for_markers = sys._getframe(1).f_code.co_name == endings.Endings._enqueue_once_committed.__name__
            return None if is_for_markers else committed(log)

        return hasty

    return replaced(StateLog, "committed", make)


def _epoch_of_a_writer_is_not_checked() -> AbstractContextManager[None]:
    def make(add: Any) -> Any:
        def lenient(name: str, metadata: Any, producer: ProducerIdentity, *arguments: Any, **options: Any) -> Any:
            if metadata is not None and producer.epoch < metadata.producer_epoch:
                producer = ProducerIdentity(producer.producer_id, metadata.producer_epoch)
            return add(name, metadata, producer, *arguments, **options)

        return lenient

    return replaced(machine, "add_partitions", make)


def _epoch_of_an_end_is_not_checked() -> AbstractContextManager[None]:
    def make(end: Any) -> Any:
        def lenient(name: str, metadata: Any, producer: ProducerIdentity, **options: Any) -> Any:
            if metadata is not None:
                producer = metadata.identity
            return end(name, metadata, producer, **options)

        return lenient

    return replaced(machine, "end", make)


def _predecessor_is_not_fenced() -> AbstractContextManager[None]:
    def make(init: Any) -> Any:
        def lenient(name: str, metadata: Any, *arguments: Any, **options: Any) -> Any:
            result = init(name, metadata, *arguments, **options)
            if metadata is not None and result.error is None and result.answer.epoch == metadata.producer_epoch + 1:
                changed = result.records[0][1]._replace(producer_epoch=metadata.producer_epoch)
                result.records[:] = [(name, changed)]
                return result.answering(changed.identity)
            return result

        return lenient

    return replaced(machine, "init_producer_id", make)


def _markers_do_not_fence() -> AbstractContextManager[None]:
    def make(fence: Any) -> Any:
        def lenient(name: str, metadata: Any, **options: Any) -> Any:
            result = fence(name, metadata, **options)
            changed = result.records[0][1]._replace(producer_epoch=metadata.producer_epoch)
            result.records[:] = [(name, changed)]
            result.effects[:] = [machine.markers_of(changed)]
            return result

        return lenient

    return replaced(machine, "_fence", make)


def _verification_always_succeeds() -> AbstractContextManager[None]:
    return replaced(
        machine,
        "verify_partitions",
        lambda _: lambda metadata, producer, partitions: dict.fromkeys(partitions, ErrorCode.none),
    )


def _prepared_ends_are_forgotten_on_reload() -> AbstractContextManager[None]:
    return replaced(TransactionShard, "loaded", lambda _: lambda *__: iter(()))


def _failed_marker_counts_as_written() -> AbstractContextManager[None]:
    return replaced(
        endings,
        "_NEEDLESS",
        lambda needless: needless | {ErrorCode.kafka_storage_error},
    )


def _timeouts_are_not_noticed() -> AbstractContextManager[None]:
    return replaced(TransactionShard, "timed_out", lambda _: lambda *__: [])


def _partition_is_forgotten_on_reload() -> AbstractContextManager[None]:
    def make(decode: Any) -> Any:
        def forgetful(name: str, value: bytes) -> Any:
            metadata = decode(name, value)
            return metadata and metadata._replace(partitions=frozenset(sorted(metadata.partitions)[:1]))

        return forgetful

    from headrace.coordinator.transactions import shard

    return replaced(shard, "decode_value", make)


def _ends_do_not_raise_the_epoch() -> AbstractContextManager[None]:
    def make(ended: Any) -> Any:
        def same(name: str, metadata: Any, **options: Any) -> Any:
            result = ended(name, metadata, **options)
            changed = result.records[0][1]._replace(producer_epoch=metadata.producer_epoch)
            result.records[:] = [(name, changed)]
            result.effects[:] = [machine.markers_of(changed)]
            return result.answering(changed.identity)

        return same

    return replaced(machine, "_ended", make)


def _prepared_transaction_is_reused() -> AbstractContextManager[None]:
    def make(add: Any) -> Any:
        def careless(name: str, metadata: Any, *arguments: Any, **options: Any) -> Any:
            if metadata is not None and metadata.state.is_prepared:
                metadata = metadata._replace(state=TransactionState.COMPLETE_COMMIT)
            return add(name, metadata, *arguments, **options)

        return careless

    return replaced(machine, "add_partitions", make)


def _fenced_producer_gets_the_new_epoch() -> AbstractContextManager[None]:
    def make(is_repeated: Any) -> Any:
        def lenient(metadata: TransactionMetadata, producer: ProducerIdentity) -> Any:
            return is_repeated(metadata._replace(client_version=2), producer)

        return lenient

    return replaced(machine, "_is_repeated", make)


def _failed_write_counts_as_written() -> AbstractContextManager[None]:
    def make(append: Any) -> Any:
        def careless(log: Any, batch: bytes, now_ms: int) -> int:
            try:
                return int(append(log, batch, now_ms))
            except KafkaError:
                return 0

        return careless

    return replaced(StateLog, "append", make)


FAULTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "a marker is missing": _marker_is_missing,
    "a reply before the commit": _reply_before_the_commit,
    "markers before the commit": _markers_before_the_commit,
    "the epoch of a writer is not checked": _epoch_of_a_writer_is_not_checked,
    "the epoch of an end is not checked": _epoch_of_an_end_is_not_checked,
    "a predecessor is not fenced": _predecessor_is_not_fenced,
    "markers do not fence": _markers_do_not_fence,
    "verification always succeeds": _verification_always_succeeds,
    "prepared ends are forgotten on reload": _prepared_ends_are_forgotten_on_reload,
    "a failed marker counts as written": _failed_marker_counts_as_written,
    "timeouts are not noticed": _timeouts_are_not_noticed,
    "a partition is forgotten on reload": _partition_is_forgotten_on_reload,
    "ends do not raise the epoch": _ends_do_not_raise_the_epoch,
    "a prepared transaction is reused": _prepared_transaction_is_reused,
    "a fenced producer gets the new epoch": _fenced_producer_gets_the_new_epoch,
    "a failed write counts as written": _failed_write_counts_as_written,
}
