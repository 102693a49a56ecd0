"""The facts about one log that its parts share: where it is, its settings, its bounds and its segments.

`Log` alone changes them; `LogReader` and `LogFlusher` only read them.
"""

import os
from collections.abc import Callable
from pathlib import Path

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.log.config import LogConfig
from headrace.storage.log.segments import Segments
from headrace.types import TopicPartition


class LogState:
    """Plain attributes, because every append and every read looks at several of them.

    Knows none of the parts: a cycle of references would keep the files of a deleted log open until the next collection.
    """

    __slots__ = (
        "config",
        "directory",
        "log_end_offset",
        "log_start_offset",
        "on_disk_error",
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
        """How often the log has been truncated or moved since it was opened: what was read before may be outdated."""
        self.on_disk_error: Callable[[LogState, OSError], None] = _ignore
        """Called with every disk error, in the thread that meets it."""

    def storage_error(self, action: str, error: OSError) -> KafkaError:
        """Report `error` to `on_disk_error`; the KafkaError(kafka_storage_error) to raise instead."""
        self.on_disk_error(self, error)
        reason = os.strerror(error.errno) if error.errno else str(error)
        return KafkaError(
            ErrorCode.kafka_storage_error, f"cannot {action} {self.topic_partition} in {self.directory}: {reason}"
        )


def _ignore(_: LogState, __: OSError) -> None:
    """For a log that belongs to no log directory."""
