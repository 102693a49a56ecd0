"""Locate the metadata in the log directories, and adopt directories without Headrace's metadata."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.wording import count

if TYPE_CHECKING:
    from headrace.adoption.kafka_cluster import KafkaCluster
    from headrace.adoption.plan import Adoption

log = logging.getLogger(__name__)

METADATA_FILE: Final = "metadata.db"


def adoption_of(log_dirs: LogDirs, config: BrokerConfig) -> "Adoption | None":
    """Plan and log the adoption of the partitions in the log directories. Return None if there is nothing to adopt.

    Changes no file. Raises KafkaError if the directories cannot be adopted.
    """
    from headrace.adoption.metadata_log import find_metadata_log

    elsewhere = config.metadata_log_dir
    metadata_log = find_metadata_log(log_dirs.owned, Path(elsewhere) if elsewhere else None)
    if metadata_log is None and not log_dirs.partitions():
        return None
    cluster = None
    if metadata_log is not None:
        from headrace.adoption.kraft_records import replay

        cluster = replay(metadata_log.records)
        if metadata_log.torn_bytes:
            log.warning(
                "The metadata log %s ends with an incomplete batch of %d bytes, which is ignored",
                metadata_log.path,
                metadata_log.torn_bytes,
            )
    adoption = plan_adoption(log_dirs, cluster, config)
    log.warning("Adopting %s", adoption.summary())
    for topic in adoption.topics:
        log.info("Adopting topic %s, id %s, %s", topic.name, topic.topic_id, count(len(topic.partitions), "partition"))
    for line in adoption.left_out:
        log.warning("Not adopted: %s", line)
    return adoption


def plan_adoption(log_dirs: LogDirs, cluster: "KafkaCluster | None", config: BrokerConfig) -> "Adoption":
    """Plan the adoption of directories without Headrace's metadata; `cluster` is Kafka's metadata, if present.

    Raises KafkaError if the directories cannot be adopted.
    """
    from headrace.adoption.plan import FoundPartition, adopt

    failed = log_dirs.found.check_readable()
    if failed:  # without their partitions, topics would be adopted incompletely
        what = " and ".join(f"{directory.path}: {error}" for directory, error in failed.items())
        raise KafkaError(ErrorCode.kafka_storage_error, f"cannot read {what}")
    found = (
        FoundPartition(
            *partition,
            log_dirs.found.topic_id(partition),
            log_dirs.found.leader_epoch(partition),
            log_dirs.cleaned_upto(partition) is not None,
        )
        for partition in log_dirs.partitions()
    )
    return adopt(found, cluster, config, log_dirs.owned.identities)


def metadata_file(directories: Sequence[Path]) -> Path:
    """Return the path of the metadata file, which is in the first directory unless another one contains it.

    Raises KafkaError(kafka_storage_error) if several directories contain a copy: only one copy can be current.
    """
    found = [directory / METADATA_FILE for directory in directories if _exists(directory / METADATA_FILE)]
    if len(found) > 1:
        raise KafkaError(
            ErrorCode.kafka_storage_error,
            f"metadata exists in {' and in '.join(map(str, found))}: move away all but this broker's latest copy",
        )
    return found[0] if found else directories[0] / METADATA_FILE


def _exists(path: Path) -> bool:
    """Return True if the file exists; False in an unreadable directory, which is reported when it is locked."""
    try:
        return path.exists()
    except OSError:
        return False
