from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from headrace.broker.disks.failed_disks import FailedDisks
from headrace.errors import ErrorCode, KafkaError
from headrace.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
A, B = Path("/a"), Path("/b")


def failed(*working: Path) -> list[object]:
    """Fail a directory while `working` ones are left, and return the calls of the callbacks."""
    called: list[object] = []
    replicas: Any = SimpleNamespace(
        take_offline=lambda directory, why: [T0], log_dirs=SimpleNamespace(directories=working)
    )
    loop: Any = SimpleNamespace(
        call_soon_threadsafe=lambda call, *arguments: call(*arguments), call_later=lambda *_: None
    )
    disks = FailedDisks(loop, replicas)
    disks.on_resigned = called.append
    disks.on_failure = lambda: called.append("directory")
    disks.directory_failed(A, "it broke")
    return called


def failed_logs(*failed: TopicPartition, online: Collection[TopicPartition]) -> tuple[list[object], FailedDisks]:
    """Return the calls of the callbacks, and the disks of a broker with partitions whose flush has failed."""
    called: list[object] = []

    def give_up(partition: Any, _: str) -> bool:
        return partition.topic_partition in online

    partitions = [SimpleNamespace(topic_partition=topic_partition) for topic_partition in failed]
    replicas: Any = SimpleNamespace(give_up=give_up, failed=lambda: [(partition, "full") for partition in partitions])
    disks = FailedDisks(cast("Any", None), replicas)
    disks.on_resigned = called.append
    disks.on_failure = lambda: called.append("notified")
    return called, disks


def test_a_failed_directory_is_reported_after_its_partitions_are_offline() -> None:
    assert failed(B) == [T0, "directory"]


def test_the_last_directory_is_not_reported_because_the_broker_stops() -> None:
    assert failed() == [T0]


def test_the_controller_is_notified_of_a_leader_that_could_not_be_flushed() -> None:
    called, disks = failed_logs(online=[T0])
    partition: Any = SimpleNamespace(topic_partition=T0)
    disks.partition_failed(partition, KafkaError(ErrorCode.kafka_storage_error, "no space left"))
    assert called == [T0, "notified"]


def test_the_controller_is_notified_once_of_all_partitions_whose_flush_has_failed_in_a_thread() -> None:
    called, disks = failed_logs(T0, T1, online=[T0, T1])
    disks.check()
    assert called == [T0, T1, "notified"]


def test_the_controller_is_not_notified_of_partitions_that_are_offline_already() -> None:
    called, disks = failed_logs(T0, online=[])
    disks.check()
    assert called == []
