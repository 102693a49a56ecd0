"""A truncation that fails at any system call changes nothing, or takes the log directory offline."""

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.files import atomic_file, log_file
from headrace.storage.files.disk_failures import is_disk_failure
from headrace.storage.log.log import Log
from headrace.storage.log.state import LogState
from tests.unit.storage.logs import NOW, append, offsets, open_log, read_all

CALLS: Final = (
    *((os, name) for name in ("open", "rename", "replace", "unlink", "ftruncate", "truncate", "fsync")),
    (io, "open"),
    (atomic_file, "fdatasync"),
    (log_file, "fdatasync"),
)
END: Final = 60
TRUNCATIONS: Final[dict[str, Callable[[Log], None]]] = {
    "within a segment": lambda log: log.truncate_to(31),
    "within the first segment": lambda log: log.truncate_to(8),
    "to nothing": lambda log: log.truncate_to(0),
    "to a later start": lambda log: log.truncate_fully_and_start_at(80),
}


def filled(directory: Path) -> Log:
    """Return a flushed log of three segments with three leader epochs."""
    log = open_log(directory)
    for place in range(END // 2):
        append(log, 2, epoch=place // 10, timestamp=NOW + place)
    log.flusher.flush()
    return log


def content(log: Log) -> tuple[Any, ...]:
    return (
        log.log_start_offset,
        log.log_end_offset,
        offsets(read_all(log)),
        log.leader_epochs.entries,
        log.reader.max_timestamp(),
        sorted(path.name for path in log.directory.iterdir()),
    )


class FailingCall:
    """Fails one system call of those that follow."""

    def __init__(self, patch: pytest.MonkeyPatch, place: int) -> None:
        self.left = place
        for module, name in CALLS:
            patch.setattr(module, name, self._counting(getattr(module, name)))

    def _counting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return call(*args, **options)

        return counted


@pytest.mark.parametrize("truncate", TRUNCATIONS.values(), ids=TRUNCATIONS.keys())
def test_a_truncation_fails_before_any_change_or_takes_the_directory_offline(
    truncate: Callable[[Log], None], tmp_path: Path
) -> None:
    whole = content(filled(tmp_path / "whole"))
    truncated = filled(tmp_path / "truncated")
    truncate(truncated)
    expected = content(truncated)
    failures: list[OSError] = []

    def note(_: LogState, error: OSError) -> None:
        failures.append(error)

    for place in range(1, 100):
        log = filled(tmp_path / str(place))
        log.state.on_disk_error = note
        failures.clear()
        with pytest.MonkeyPatch.context() as patch:
            failing = FailingCall(patch, place)
            code = failing_code(truncate, log)
        if failing.left > 0:
            break
        assert code in (None, ErrorCode.kafka_storage_error)
        if code is None:  # it works without this call
            assert not failures
        elif is_disk_failure(failures[0]):
            assert "restart the broker" in str(failures[0])
            log = open_log(log.directory, recovery_point=log.flusher.recovery_point)
        else:
            assert content(log) == whole, f"call {place}"
        truncate(log)
        assert content(log) == expected, f"call {place}"
        log.close()
    assert place > 20


def failing_code(truncate: Callable[[Log], None], log: Log) -> ErrorCode | None:
    try:
        truncate(log)
    except KafkaError as error:
        return error.code
    return None
