"""The state that the parts of a log share. Only `Log` changes it; `LogReader` and `LogFlusher` read it."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.files.disk_failures import HalfDoneError
from headrace.storage.log.config import LogConfig
from headrace.storage.log.indexes.index import CorruptIndexError
from headrace.storage.log.segments import Segments
from headrace.types import TopicPartition

log = logging.getLogger(__name__)


class LogState:
    """Plain attributes, because every append and every read uses several of them.

    It does not refer to the parts: a reference cycle would keep a deleted log's files open until the next collection.
    """

    __slots__ = (
        "config",
        "directory",
        "lacks_snapshot",
        "log_end_offset",
        "log_start_offset",
        "on_disk_error",
        "producers_writer",
        "segments",
        "topic_partition",
        "truncations",
    )

    def __init__(self, directory: Path, topic_partition: TopicPartition, config: LogConfig) -> None:
        self.directory = directory
        self.topic_partition = topic_partition
        self.config = config
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.segments = Segments([])
        self.truncations = 0
        """The number of truncations and moves since the log was opened. Reads from before a change may be outdated."""
        self.on_disk_error: Callable[[LogState, OSError], None] = _ignore
        """Called with every disk error, in the thread in which it occurred."""
        self.producers_writer: Callable[[], Callable[[int], None] | None] = _none
        """Returns a function that writes a producer snapshot at an offset; a weak reference to the log's replica."""
        self.lacks_snapshot = False
        """True if the disk was full at the last `keep_producers`."""

    def storage_error(self, action: str, error: OSError | CorruptIndexError) -> KafkaError:
        """Report an OSError to `on_disk_error`, and return the KafkaError(kafka_storage_error) to raise instead."""
        reason = str(error)
        if isinstance(error, OSError):
            self.on_disk_error(self, error)
            reason = os.strerror(error.errno) if error.errno else reason
        return KafkaError(
            ErrorCode.kafka_storage_error, f"cannot {action} {self.topic_partition} in {self.directory}: {reason}"
        )

    def write_producer_snapshot(self, offset: int) -> None:
        """Write the state of the producers at `offset`, if a replica has it. Logs failures."""
        write = self.producers_writer()
        if write is not None:
            try:
                write(offset)
            except OSError as error:
                log.warning(
                    "The producer snapshot of %s could not be written: %s. The next start reads more of its log"
                    " instead",
                    self.topic_partition,
                    error,
                )
                self.on_disk_error(self, error)

    @contextmanager
    def truncating(self) -> Iterator[None]:
        """Take the log directory offline, as Kafka does, if an error interrupts a truncation.

        The log is complete again once it is loaded at the next start. Raises KafkaError(kafka_storage_error).
        """
        try:
            yield
        except (OSError, CorruptIndexError, KafkaError) as error:
            reason = getattr(error, "strerror", None) or error
            half_done = HalfDoneError(f"{self.topic_partition} is truncated only in part: {reason}")
            half_done.__cause__ = error
            raise self.storage_error("truncate", half_done) from half_done


def _ignore(_: LogState, __: OSError) -> None:
    """Do nothing: the log belongs to no log directory."""


def _none() -> None:
    """Return None: the log belongs to no replica."""
