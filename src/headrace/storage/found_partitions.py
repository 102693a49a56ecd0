"""What lies in log directories: partitions, what waits for its removal, and copies that were not finished."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.atomic_file import sync_directory
from headrace.storage.log_dir import LogDir
from headrace.storage.partition_dir import (
    DELETE_SUFFIX,
    KRAFT_METADATA,
    parse_future_name,
    parse_name,
    replaced_name,
)
from headrace.types import TopicPartition

log = logging.getLogger(__name__)


class Place(NamedTuple):
    """A partition's directory, and the log directory that it is in."""

    parent: LogDir
    path: Path


@dataclass
class FoundPartitions:
    """`promoted` are those in `partitions` that have a copy's name still; `doomed` are directories to remove."""

    partitions: dict[TopicPartition, Place] = field(default_factory=dict)
    promoted: list[TopicPartition] = field(default_factory=list)
    doomed: list[Path] = field(default_factory=list)

    def promote(self) -> None:
        """Give copies that take the place of their originals the names of those. Raises OSError."""
        for topic_partition in self.promoted:
            parent, path = self.partitions[topic_partition]
            target = parent.path / str(topic_partition)
            path.rename(target)
            sync_directory(parent.path)
            self.partitions[topic_partition] = Place(parent, target)
            log.warning("%s was being moved: its copy in %s takes its place", topic_partition, parent.path)


def find_partitions(directories: Iterable[LogDir]) -> FoundPartitions:
    """Look into `directories`, changing nothing.

    Raises KafkaError(kafka_storage_error) for a partition that is in two directories.
    """
    found = FoundPartitions()
    copies: list[tuple[TopicPartition, str, Place]] = []
    names: set[str] = set()
    for directory in directories:
        for path in sorted(path for path in directory.path.iterdir() if path.is_dir()):
            names.add(path.name)
            if path.name.endswith(DELETE_SUFFIX):
                found.doomed.append(path)
                continue
            copy = parse_future_name(path.name)
            if copy is not None:
                copies.append((*copy, Place(directory, path)))
                continue
            topic_partition = parse_name(path.name)
            if topic_partition is not None and topic_partition.topic == KRAFT_METADATA:
                continue
            if topic_partition is None:
                log.warning("%s is no partition's directory; leaving it alone", path)
                continue
            twin = found.partitions.get(topic_partition)
            if twin is not None:
                raise KafkaError(
                    ErrorCode.kafka_storage_error,
                    f"{topic_partition} is in {path} and in {twin.path}: remove the older one of the two",
                )
            found.partitions[topic_partition] = Place(directory, path)
    for topic_partition, identity, place in copies:
        if topic_partition in found.partitions:
            log.warning("%s is a copy that was not finished; removing it: move the partition again", place.path)
            found.doomed.append(place.path)
        elif replaced_name(topic_partition, identity) in names:
            found.partitions[topic_partition] = place
            found.promoted.append(topic_partition)
        else:
            log.warning(
                "%s is perhaps a part of %s only, whose own directory is not here; leaving it alone",
                place.path,
                topic_partition,
            )
    return found
