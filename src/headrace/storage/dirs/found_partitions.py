"""What lies in log directories: partitions, what waits for its removal, and copies that were not finished.

And what the files beside its log say about a partition, before that is opened.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.dirs.log_dir import LogDir
from headrace.storage.dirs.partition_dir import (
    DELETE_SUFFIX,
    KRAFT_METADATA,
    STRAY_SUFFIX,
    check_partition,
    parse_future_name,
    parse_name,
    replaced_name,
    way_back,
)
from headrace.storage.dirs.partition_metadata import FILE_NAME as METADATA_FILE
from headrace.storage.dirs.partition_metadata import read_topic_id, write_topic_id
from headrace.storage.files.atomic_file import sync_directory
from headrace.storage.files.checkpoint import CorruptCheckpointError
from headrace.storage.log.leader_epochs import FILE_NAME as LEADER_EPOCHS_FILE
from headrace.storage.log.leader_epochs import UNDEFINED, read_entries
from headrace.types import TopicPartition
from headrace.wire.ids import id_to_text

log = logging.getLogger(__name__)


class Place(NamedTuple):
    """A partition's directory, and the log directory that it is in."""

    parent: LogDir
    path: Path


@dataclass
class FoundPartitions:
    """`partitions` is what is found and, once logs are open, what there is.

    `promoted` are those in it that have a copy's name still; `doomed` are directories to remove.
    """

    partitions: dict[TopicPartition, Place] = field(default_factory=dict)
    promoted: list[TopicPartition] = field(default_factory=list)
    doomed: list[Path] = field(default_factory=list)
    _topic_ids: dict[TopicPartition, UUID | None] = field(default_factory=dict)

    def leave_out(self, directory: LogDir) -> None:
        """Pass over what is in a log directory that cannot be used."""
        for each in [each for each, place in self.partitions.items() if place.parent is directory]:
            del self.partitions[each]
            self.promoted = [other for other in self.promoted if other != each]

    def promote(self) -> None:
        """Give copies that take the place of their originals the names of those. Raises OSError."""
        for topic_partition in self.promoted:
            parent, path = self.partitions[topic_partition]
            target = parent.path / str(topic_partition)
            path.rename(target)
            sync_directory(parent.path)
            self.partitions[topic_partition] = Place(parent, target)
            log.warning("%s was being moved: its copy in %s takes its place", topic_partition, parent.path)

    def check_readable(self) -> None:
        """See whether every partition is of a kind that can be served, for directories that somebody else wrote.

        Raises KafkaError for the first that is not: kafka_storage_error, unsupported_for_message_format.
        """
        for _, path in self.partitions.values():
            try:
                check_partition(path)
            except OSError as error:
                raise KafkaError(ErrorCode.kafka_storage_error, f"cannot read {path}: {error}") from error

    def topic_id(self, topic_partition: TopicPartition) -> UUID | None:
        """The id of the topic whose records are in the partition's directory; None where it is not written down.

        Raises KafkaError(inconsistent_topic_id) for a malformed `partition.metadata`.
        """
        if topic_partition not in self._topic_ids:
            self._topic_ids[topic_partition] = read_topic_id(self.partitions[topic_partition][1])
        return self._topic_ids[topic_partition]

    def stated_topic_id(self, topic_partition: TopicPartition) -> UUID | None:
        """As `topic_id`, with None for a file that cannot be read: the partition is then offline, and says why."""
        try:
            return self.topic_id(topic_partition)
        except KafkaError:
            return None

    def other_topic(self, topic_partition: TopicPartition, topic_id: UUID, owner: str | None) -> KafkaError:
        """The error of a partition whose directory says that it is another topic's: `owner`, where there is one.

        To serve the partition without its records would hide them, and let them be written over in the end.
        """
        path = self.partitions[topic_partition].path
        found = self.topic_id(topic_partition)
        whose = "which no topic has" if owner is None else f"that of topic {owner}"
        return KafkaError(
            ErrorCode.inconsistent_topic_id,
            f"{path / METADATA_FILE} names topic id {found and id_to_text(found)}, {whose}, and not"
            f" {id_to_text(topic_id)}, that of topic {topic_partition.topic}. The records are kept and not served. Stop"
            f" the broker. If the directory was renamed by hand, give it its old name. If its records are those of"
            f" {topic_partition}: rm '{path / METADATA_FILE}'. If they are not wanted, move it away: mv '{path}'"
            f" '{path.parent.with_name(path.name + '.aside')}'; the partition is then empty. Start the broker again",
        )

    def note_topic_id(self, topic_partition: TopicPartition, topic_id: UUID) -> None:
        """Write down whose records are in a partition's directory, where a crash or an old Kafka left that out.

        Raises KafkaError(kafka_storage_error).
        """
        path = self.partitions[topic_partition][1]
        try:
            write_topic_id(path, topic_id)
            self._topic_ids[topic_partition] = topic_id
        except OSError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, f"cannot write the topic id in {path}: {error}") from error

    def leader_epoch(self, topic_partition: TopicPartition) -> int:
        """The newest leader epoch that the partition's directory knows, before its log is loaded; -1 for none."""
        try:
            entries = read_entries(self.partitions[topic_partition][1] / LEADER_EPOCHS_FILE)
        except (CorruptCheckpointError, OSError):
            return UNDEFINED  # opening the log tells what is wrong
        return entries[-1].epoch if entries else UNDEFINED

    def forget(self, topic_partition: TopicPartition) -> None:
        """The partition has no directory any more."""
        del self.partitions[topic_partition]
        self._topic_ids.pop(topic_partition, None)


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
            if path.name.endswith(STRAY_SUFFIX):
                log.warning("%s", way_back(path))
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
