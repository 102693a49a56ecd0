"""The beginning of a cluster: whether directories belong to one, and what its metadata begins with."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.adoption.found_directories import METADATA_FILE, metadata_file
from headrace.cluster.store import Operation, StoreError
from headrace.cluster.stores.metadata_file import founded_cluster
from headrace.errors import ErrorCode, KafkaError
from headrace.storage.dirs.owned_dirs import OwnedDirs

if TYPE_CHECKING:
    from headrace.adoption.plan import Adoption


def cluster_of(directories: Sequence[Path]) -> str | None:
    """The cluster id that the metadata knows, for directories that lost theirs (`meta.properties`)."""
    try:
        return founded_cluster(metadata_file(directories)) if directories else None
    except StoreError as error:
        raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error


def refuse_without_metadata(owned: OwnedDirs) -> None:
    """Raise KafkaError where the metadata is not there, and may be in a log directory that is not there either."""
    why = owned.why_metadata_may_be_elsewhere()
    if why is not None:
        raise KafkaError(
            ErrorCode.kafka_storage_error,
            f"{METADATA_FILE}, which knows the cluster's topics, is in none of the log directories that work, and"
            f" {why}. Bring that back and start again. If it is lost for good, take it out of log.dirs: the topics"
            " in the other directories are then served with default settings",
        )


def first_operations(adoption: "Adoption | None", node_id: int) -> Sequence[Operation]:
    """What a new metadata tree begins with: the topics of the directories that were adopted."""
    if adoption is None:
        return ()
    from headrace.adoption.plan import adopted

    return adopted(adoption, node_id)
