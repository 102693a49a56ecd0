from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace.broker.disks.failed_disks import FailedDisks
from headrace.types import TopicPartition

T0 = TopicPartition("t", 0)
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
    disks.on_directory = lambda: called.append("directory")
    disks.directory_failed(A, "it broke")
    return called


def test_a_failed_directory_is_reported_after_its_partitions_are_offline() -> None:
    assert failed(B) == [T0, "directory"]


def test_the_last_directory_is_not_reported_because_the_broker_stops() -> None:
    assert failed() == [T0]
