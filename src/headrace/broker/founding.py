"""Find the cluster of data directories, or create the metadata of a new cluster."""

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
    """Return the cluster id in the metadata, for directories that have lost their `meta.properties`."""
    try:
        return founded_cluster(metadata_file(directories)) if directories else None
    except StoreError as error:
        raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error


def refuse_without_metadata(owned: OwnedDirs) -> None:
    """Raise KafkaError if the metadata is missing but may be in a log directory that is missing, too."""
    reason = owned.why_metadata_may_be_elsewhere()
    if reason is not None:
        raise KafkaError(
            ErrorCode.kafka_storage_error,
            f"{METADATA_FILE}, which contains the cluster's topics, is in none of the working log directories, and"
            f" {reason}. Restore that directory and start again. If it is lost for good, remove it from log.dirs: the"
            " topics in the other directories are then served with default settings",
        )


def first_operations(adoption: "Adoption | None", node_id: int) -> Sequence[Operation]:
    """Return the first operations of a new metadata tree, which create the topics of adopted directories."""
    if adoption is None:
        return ()
    from headrace.adoption.plan import adopted

    return adopted(adoption, node_id)
