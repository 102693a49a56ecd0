"""Names of partition directories: `topic-partition`, or `topic-partition.id-suffix` if it is not in service.

As in Kafka, `-delete` marks directories to remove, `-future` unfinished copies, and `-stray` unknown partitions.
"""

import os
import re
from pathlib import Path
from typing import Final
from uuid import uuid4

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.log.segment import old_format_error
from headrace.storage.log.segment_files import LOG_SUFFIX, offset_of
from headrace.types import TopicPartition
from headrace.wire.batch import HEADER_SIZE, peek

DELETE_SUFFIX: Final = "-delete"
"""To be removed."""
STRAY_SUFFIX: Final = "-stray"
"""Belongs to no topic of the cluster; the administrator decides what to do with it."""

FUTURE_SUFFIX: Final = "-future"
"""An unfinished copy of a partition in another log directory."""

KRAFT_METADATA: Final = "__cluster_metadata"
"""The metadata log of a KRaft quorum, in directories written by Kafka: not a topic, and ignored."""

MAX_NAME: Final = 255
"""The longest file name, in bytes."""
_PARTITION: Final = r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>0|[1-9][0-9]{0,9})"
_NAME: Final = re.compile(_PARTITION, re.ASCII)
_FUTURE_NAME: Final = re.compile(_PARTITION + r"\.(?P<identity>[0-9a-f]{32})-future", re.ASCII)


def parse_name(name: str) -> TopicPartition | None:
    """Return the partition whose directory has this name; None for other names.

    The partition number follows the last dash: topic names may contain dashes, digits and dots.
    """
    match = _NAME.fullmatch(name)
    return TopicPartition(match["topic"], int(match["partition"])) if match else None


def future_name(topic_partition: TopicPartition, identity: str) -> str:
    """Return the name of a copy; the directory it replaces gets `replaced_name` with the same identity."""
    return f"{topic_partition}.{identity}{FUTURE_SUFFIX}"


def replaced_name(topic_partition: TopicPartition, identity: str) -> str:
    return f"{topic_partition}.{identity}{DELETE_SUFFIX}"


def parse_future_name(name: str) -> tuple[TopicPartition, str] | None:
    """Return the partition and the identity of a copy; None for other names."""
    match = _FUTURE_NAME.fullmatch(name)
    return None if match is None else (TopicPartition(match["topic"], int(match["partition"])), match["identity"])


def retired_name(topic_partition: TopicPartition, suffix: str) -> str:
    """Return a unique name, of at most MAX_NAME bytes, for a directory that is no longer served."""
    tail = f"-{topic_partition.partition}.{uuid4().hex}{suffix}"
    return topic_partition.topic[: MAX_NAME - len(tail)] + tail


def stray_advice(stray: Path) -> str:
    """Explain the directory `stray`, and how to serve or remove it."""
    name = stray.name.removesuffix(STRAY_SUFFIX).rpartition(".")[0]
    place = stray.with_name(name)
    return (
        f"{stray} has records that are not served: it was set aside when the cluster had no such partition. To serve"
        f" them, create the topic if it is missing and stop the broker; then mv '{place}'"
        f" '{place.parent.with_name(name + '.aside')}', mv '{stray}' '{place}', rm '{place}/partition.metadata', and"
        f" start the broker. If you do not need them, remove the directory: rm -r '{stray}'"
    )


def check_partition(directory: Path) -> None:
    """Check that the files of a partition can be served, without changing them.

    Raises OSError, and KafkaError: kafka_storage_error without permission to read and write,
    unsupported_for_message_format for a segment that begins with a batch from before Kafka 0.11.
    """
    for path in (directory, *directory.iterdir()):
        if not os.access(path, os.R_OK | os.W_OK):
            path.stat()  # raises the error of a failed disk, which os.access hides
            raise KafkaError(
                ErrorCode.kafka_storage_error,
                f"no permission to read and write {path}: run the broker as its owner, or change the owner with chown",
            )
        if path.name.endswith(LOG_SUFFIX) and offset_of(path.name) is not None:
            if not path.is_file():
                continue  # opening the log reports the error
            with path.open("rb") as file:
                head = file.read(HEADER_SIZE)
            if len(head) == HEADER_SIZE and (magic := peek(head)[2]) in (0, 1):
                raise old_format_error(path, 0, magic)
