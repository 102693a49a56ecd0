"""Sets aside the directories of partitions that the cluster does not have."""

import logging
from collections.abc import Callable
from uuid import UUID

from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.dirs.partition_dir import stray_advice
from headrace.types import TopicPartition

log = logging.getLogger(__name__)


def set_strays_aside(
    log_dirs: LogDirs,
    topic_id_of: Callable[[TopicPartition], UUID | None],
    *,
    name_of: Callable[[UUID], str | None] = lambda _: None,
    is_new: Callable[[TopicPartition], bool] = lambda _: True,
) -> None:
    """Rename directories that belong to no partition of the cluster, and log warnings.

    A crash during a deletion leaves them. `topic_id_of` returns None for an unknown partition, `name_of` the topic
    name for an id, and `is_new` True for a partition created since the last start. A directory with another topic's
    id is kept, and the partition is offline: no empty log replaces it. Raises KafkaError(kafka_storage_error).
    """
    for topic_partition in tuple(log_dirs.partitions()):
        topic_id = topic_id_of(topic_partition)
        found = log_dirs.found.stated_topic_id(topic_partition)
        if topic_id is not None:
            if found is None or found == topic_id:
                continue
            # the topic was deleted and created again just before a crash
            is_left_over = is_new(topic_partition) and name_of(found) is None
            if not is_left_over or log_dirs.was_clean(topic_partition):
                continue
        path = log_dirs.set_aside(topic_partition)
        identity = "" if found is None else f" with topic id {found}"
        log.warning("The cluster has no partition %s%s. %s", topic_partition, identity, stray_advice(path))
