"""Names of partition directories: `topic-partition`, and with an id and a suffix while a partition goes.

Kafka has more suffixes, `-future` for a copy in the making and `-stray` for what the cluster does not know: the dot
before the id and the word behind it keep those from being taken for a partition.
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
"""Waits for its removal."""
STRAY_SUFFIX: Final = "-stray"
"""Belongs to no topic that the cluster has; an operator decides what becomes of it."""

FUTURE_SUFFIX: Final = "-future"
"""A copy in the making, in another log directory."""

KRAFT_METADATA: Final = "__cluster_metadata"
"""The metadata log of a KRaft quorum, in directories that Kafka wrote: no topic's, and left as it is."""

MAX_NAME: Final = 255
"""Bytes of a name that a file system takes."""
_PARTITION: Final = r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>0|[1-9][0-9]{0,9})"
_NAME: Final = re.compile(_PARTITION, re.ASCII)
_FUTURE_NAME: Final = re.compile(_PARTITION + r"\.(?P<identity>[0-9a-f]{32})-future", re.ASCII)


def parse_name(name: str) -> TopicPartition | None:
    """The partition whose log is in the directory `name`; None for any other directory.

    The topic may itself contain dashes, digits and dots: the partition is behind the last dash.
    """
    match = _NAME.fullmatch(name)
    return TopicPartition(match["topic"], int(match["partition"])) if match else None


def future_name(topic_partition: TopicPartition, identity: str) -> str:
    """Of the directory of a copy; `replaced_name` with the same identity is what becomes of the one it replaces."""
    return f"{topic_partition}.{identity}{FUTURE_SUFFIX}"


def replaced_name(topic_partition: TopicPartition, identity: str) -> str:
    return f"{topic_partition}.{identity}{DELETE_SUFFIX}"


def parse_future_name(name: str) -> tuple[TopicPartition, str] | None:
    """The partition that a copy is of, and the identity of the copy; None for any other directory."""
    match = _FUTURE_NAME.fullmatch(name)
    return None if match is None else (TopicPartition(match["topic"], int(match["partition"])), match["identity"])


def retired_name(topic_partition: TopicPartition, suffix: str) -> str:
    """A new name for a directory that is no longer served, cut to what a file system takes."""
    tail = f"-{topic_partition.partition}.{uuid4().hex}{suffix}"
    return topic_partition.topic[: MAX_NAME - len(tail)] + tail


def way_back(stray: Path) -> str:
    """What the directory `stray` is, which was set aside, and how to serve or remove it."""
    name = stray.name.removesuffix(STRAY_SUFFIX).rpartition(".")[0]
    place = stray.with_name(name)
    return (
        f"{stray} holds records that are not served: the cluster had no such partition when it was set aside. To serve"
        f" them, create the topic where it is missing and stop the broker; then mv '{place}'"
        f" '{place.parent.with_name(name + '.aside')}', mv '{stray}' '{place}', rm '{place}/partition.metadata', and"
        f" start the broker. If they are not wanted, remove the directory: rm -r '{stray}'"
    )


def check_partition(directory: Path) -> None:
    """See whether the files of a partition are ours to serve, without a change to any of them.

    Raises KafkaError: kafka_storage_error where this user may not write, unsupported_for_message_format where a segment
    begins with a batch from before Kafka 0.11; OSError.
    """
    for path in (directory, *directory.iterdir()):
        if not os.access(path, os.R_OK | os.W_OK):
            raise KafkaError(
                ErrorCode.kafka_storage_error,
                f"{path} may not be written by this user: let the broker run as the user that owns it, or use chown",
            )
        if path.name.endswith(LOG_SUFFIX) and offset_of(path.name) is not None:
            if not path.is_file():
                continue  # opening the log says so
            with path.open("rb") as file:
                head = file.read(HEADER_SIZE)
            if len(head) == HEADER_SIZE and (magic := peek(head)[2]) in (0, 1):
                raise old_format_error(path, 0, magic)
