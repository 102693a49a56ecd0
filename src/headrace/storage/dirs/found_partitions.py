"""Finds partitions, directories to remove and unfinished copies in log directories, before any log is opened.

Also reads the topic ids and leader epochs stored with a partition's log.
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
    stray_advice,
)
from headrace.storage.dirs.partition_metadata import FILE_NAME as METADATA_FILE
from headrace.storage.dirs.partition_metadata import read_topic_id, write_topic_id
from headrace.storage.files.atomic_file import sync_directory
from headrace.storage.files.checkpoint import CorruptCheckpointError
from headrace.storage.files.disk_failures import is_disk_failure
from headrace.storage.log.leader_epochs import FILE_NAME as LEADER_EPOCHS_FILE
from headrace.storage.log.leader_epochs import UNDEFINED, read_entries
from headrace.types import TopicPartition
from headrace.wire.ids import id_to_text

log = logging.getLogger(__name__)


class Place(NamedTuple):
    parent: LogDir
    path: Path


@dataclass
class FoundPartitions:
    """The partitions in the log directories. `partitions` is kept up to date after the start.

    `promoted` are those whose directory still has the name of a copy; `doomed` are directories to remove; `unreadable`
    are log directories that could not be listed.
    """

    partitions: dict[TopicPartition, Place] = field(default_factory=dict)
    promoted: list[TopicPartition] = field(default_factory=list)
    doomed: list[Path] = field(default_factory=list)
    unreadable: dict[LogDir, OSError] = field(default_factory=dict)
    _topic_ids: dict[TopicPartition, UUID | None] = field(default_factory=dict)

    def leave_out(self, directories: Iterable[LogDir]) -> None:
        """Drop the partitions of unusable log directories. Keep the copies of these partitions in other directories."""
        for directory in directories:
            excluded = {found for found, place in self.partitions.items() if place.parent is directory}
            for topic_partition in excluded:
                del self.partitions[topic_partition]
            self.promoted = [other for other in self.promoted if other not in excluded]
            copies = [path for path in self.doomed if (copy := parse_future_name(path.name)) and copy[0] in excluded]
            for path in copies:
                log.warning("Keeping %s, because the disk of the original partition has failed", path)
            self.doomed = [path for path in self.doomed if path.parent != directory.path and path not in copies]

    def promote(self) -> dict[LogDir, OSError]:
        """Rename copies that replace their originals. Return the log directories whose disks failed.

        Raises KafkaError(kafka_storage_error) if another error prevents it.
        """
        failed: dict[LogDir, OSError] = {}
        for topic_partition in self.promoted:
            parent, path = self.partitions[topic_partition]
            if parent in failed:
                continue
            target = parent.path / str(topic_partition)
            try:
                path.rename(target)
                sync_directory(parent.path)
            except OSError as error:
                if not is_disk_failure(error):
                    what = f"cannot complete an interrupted move: {error}"
                    raise KafkaError(ErrorCode.kafka_storage_error, what) from error
                failed[parent] = error
                continue
            self.partitions[topic_partition] = Place(parent, target)
            log.warning("%s: completed an interrupted move to %s", topic_partition, parent.path)
        return failed

    def check_readable(self) -> dict[LogDir, OSError]:
        """Check that Headrace can serve every partition of directories that Kafka has written.

        Return the log directories whose disks failed. Raises KafkaError for the first partition that it cannot serve
        for another reason: kafka_storage_error, unsupported_for_message_format.
        """
        failed: dict[LogDir, OSError] = {}
        for parent, path in self.partitions.values():
            if parent in failed:
                continue
            try:
                check_partition(path)
            except OSError as error:
                if not is_disk_failure(error):
                    raise KafkaError(ErrorCode.kafka_storage_error, f"cannot read {path}: {error}") from error
                failed[parent] = error
        return failed

    def topic_id(self, topic_partition: TopicPartition) -> UUID | None:
        """Return the topic id stored in the partition's directory; None if it has none.

        Raises KafkaError as `read_topic_id` does.
        """
        if topic_partition not in self._topic_ids:
            self._topic_ids[topic_partition] = read_topic_id(self.partitions[topic_partition][1])
        return self._topic_ids[topic_partition]

    def stated_topic_id(self, topic_partition: TopicPartition) -> UUID | None:
        """Like `topic_id`, but None for an unreadable file: loading the partition then reports the error."""
        try:
            return self.topic_id(topic_partition)
        except KafkaError:
            return None

    def other_topic(self, topic_partition: TopicPartition, topic_id: UUID, owner: str | None) -> KafkaError:
        """Return the error for a directory with the id of another topic: `owner`, or one that does not exist.

        Serving an empty partition instead would hide the records, and later overwrite them.
        """
        path = self.partitions[topic_partition].path
        found = self.topic_id(topic_partition)
        whose = "which belongs to no topic" if owner is None else f"that of topic {owner}"
        return KafkaError(
            ErrorCode.inconsistent_topic_id,
            f"{path / METADATA_FILE} has topic id {found and id_to_text(found)}, {whose}, but topic"
            f" {topic_partition.topic} has id {id_to_text(topic_id)}. The records are kept, but not served. Stop the"
            f" broker. If the directory was renamed by hand, restore its old name. If the records belong to"
            f" {topic_partition}: rm '{path / METADATA_FILE}'. If you do not need them, move the directory away: mv"
            f" '{path}' '{path.parent.with_name(path.name + '.aside')}'; the partition is then empty. Start the broker"
            " again",
        )

    def note_topic_id(self, topic_partition: TopicPartition, topic_id: UUID) -> None:
        """Store the topic id in a partition's directory that has none: after a crash, or if Kafka before 2.8 wrote it.

        Raises KafkaError(kafka_storage_error).
        """
        path = self.partitions[topic_partition][1]
        try:
            write_topic_id(path, topic_id)
            self._topic_ids[topic_partition] = topic_id
        except OSError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, f"cannot write the topic id in {path}: {error}") from error

    def leader_epoch(self, topic_partition: TopicPartition) -> int:
        """Return the newest leader epoch stored in the partition's directory; -1 for none."""
        try:
            entries = read_entries(self.partitions[topic_partition][1] / LEADER_EPOCHS_FILE)
        except (CorruptCheckpointError, OSError):
            return UNDEFINED  # opening the log reports the error
        return entries[-1].epoch if entries else UNDEFINED

    def forget(self, topic_partition: TopicPartition) -> None:
        del self.partitions[topic_partition]
        self._topic_ids.pop(topic_partition, None)


def find_partitions(directories: Iterable[LogDir]) -> FoundPartitions:
    """Find the partitions in `directories`, without changing anything.

    Directories that cannot be listed become `unreadable`.

    Raises KafkaError(kafka_storage_error) if a partition is in two directories.
    """
    found = FoundPartitions()
    copies: list[tuple[TopicPartition, str, Place]] = []
    names: set[str] = set()
    for directory in directories:
        try:
            paths = sorted(path for path in directory.path.iterdir() if path.is_dir())
        except OSError as error:
            found.unreadable[directory] = error
            continue
        for path in paths:
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
                log.warning("%s", stray_advice(path))
                continue
            if topic_partition is None:
                log.warning("Ignoring %s, whose name is not topic-partition: move it out of the log directory", path)
                continue
            twin = found.partitions.get(topic_partition)
            if twin is not None:
                raise KafkaError(
                    ErrorCode.kafka_storage_error,
                    f"{topic_partition} is in {path} and in {twin.path}: move the older one out of the log directories."
                    f" Its {LEADER_EPOCHS_FILE} ends with the lower epoch or, if both are equal, its log ends at"
                    " the lower offset",
                )
            found.partitions[topic_partition] = Place(directory, path)
    for topic_partition, identity, place in copies:
        if topic_partition in found.partitions:
            log.warning(
                "Removing %s, the unfinished copy of an interrupted move; to complete the move, request it again",
                place.path,
            )
            found.doomed.append(place.path)
        elif replaced_name(topic_partition, identity) in names:
            found.partitions[topic_partition] = place
            found.promoted.append(topic_partition)
        else:
            log.warning(
                "Ignoring %s, which may be an incomplete copy of %s. The original directory is missing: restore it, and"
                " restart the broker",
                place.path,
                topic_partition,
            )
    return found
