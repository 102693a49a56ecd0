"""Start a broker with a planted fault: `python -m tests.checker.planted FAULT start ...`.

The checker must find every fault: a checker that finds nothing proves nothing.
"""

import asyncio
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from headrace.__main__ import main
from headrace.coordinator.endings import Endings
from headrace.coordinator.group_coordinator import GroupCoordinator
from headrace.coordinator.transaction_coordinator import TransactionCoordinator
from headrace.coordinator.transactions.states import ProducerIdentity, TransactionState
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.partition import Partition
from headrace.replication.producer_checks import ProducerChecks
from headrace.replication.verification import UNVERIFIED
from headrace.types import TopicPartition

_chance: Final = random.Random(1)


def missing_marker() -> None:
    """Skip the marker of a partition now and then."""
    send_one = Endings._send_one

    def send_most(self: Endings, ending: Any, partition: TopicPartition) -> None:
        if partition.topic.startswith("__") or _chance.random() > 0.05:
            send_one(self, ending, partition)
        else:
            self._answered(ending, partition, None)

    Endings._send_one = send_most  # type: ignore[method-assign]


def marker_twice() -> None:
    """Write every marker again after a moment."""
    send_one = Endings._send_one

    def send_again(self: Endings, ending: Any, partition: TopicPartition) -> None:
        try:
            self._markers.write(partition, ending.markers, ending.shard.log.coordinator_epoch)
        except KafkaError:
            return

    def send_twice(self: Endings, ending: Any, partition: TopicPartition) -> None:
        send_one(self, ending, partition)
        for delay_s in (0.02, 0.05, 0.1):  # one of them hits the producer's next transaction
            self._loop.call_later(delay_s, send_again, self, ending, partition)

    Endings._send_one = send_twice  # type: ignore[method-assign]


def early_reply() -> None:
    """Confirm the end of a transaction before it is decided."""
    end = TransactionCoordinator.end

    def end_later(
        self: TransactionCoordinator, name: str, producer: ProducerIdentity, *, commit: bool, client_version: int
    ) -> ProducerIdentity:
        def later() -> None:
            try:
                end(self, name, producer, commit=commit, client_version=client_version)
            except KafkaError:
                return

        _, metadata = self._find(name)
        if metadata is None or metadata.identity != producer or metadata.state is not TransactionState.ONGOING:
            return end(self, name, producer, commit=commit, client_version=client_version)
        asyncio.get_running_loop().call_later(0.05, later)
        return producer

    TransactionCoordinator.end = end_later  # type: ignore[method-assign]


def missing_fence() -> None:
    """Ignore producer epochs in the coordinator and in partitions."""
    end, add, verify = TransactionCoordinator.end, TransactionCoordinator.add_partitions, TransactionCoordinator.verify
    check, start_verification = ProducerChecks.check, Partition.start_verification

    def current(self: TransactionCoordinator, name: str, producer: ProducerIdentity) -> ProducerIdentity:
        _, metadata = self._find(name)
        return producer if metadata is None else metadata.identity

    def for_all(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: TransactionCoordinator, name: str, producer: ProducerIdentity, *args: Any, **kwargs: Any) -> Any:
            return method(self, name, current(self, name, producer), *args, **kwargs)

        return call

    def unless_fenced(method: Callable[..., Any], instead: object) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except KafkaError as error:
                if error.code is not ErrorCode.invalid_producer_epoch:
                    raise
                return instead

        return call

    TransactionCoordinator.end = for_all(end)  # type: ignore[method-assign]
    TransactionCoordinator.add_partitions = for_all(add)  # type: ignore[method-assign]
    TransactionCoordinator.verify = for_all(verify)  # type: ignore[method-assign]
    ProducerChecks.check = unless_fenced(check, None)  # type: ignore[method-assign]
    Partition.start_verification = unless_fenced(start_verification, UNVERIFIED)  # type: ignore[method-assign]


def offsets_outside() -> None:
    """Commit offsets at once, independent of the outcome of their transaction."""

    def commit_at_once(
        self: GroupCoordinator,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Sequence[Any],
        **_: Any,
    ) -> Any:
        return self.commit_offsets(group_id, member_id, instance_id, generation, offsets)

    GroupCoordinator.commit_transactional = commit_at_once  # type: ignore[method-assign]


FAULTS: Final[dict[str, Callable[[], None]]] = {
    "missing-marker": missing_marker,
    "marker-twice": marker_twice,
    "early-reply": early_reply,
    "missing-fence": missing_fence,
    "offsets-outside": offsets_outside,
}

if __name__ == "__main__":
    FAULTS[sys.argv.pop(1)]()
    sys.exit(main())
