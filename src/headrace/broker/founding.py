"""Check which cluster the log directories belong to, before a broker founds or joins one."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.adoption.found_directories import METADATA_FILE, metadata_file
from headrace.cluster.store import Operation, StoreError
from headrace.cluster.stores.metadata_file import founded_cluster
from headrace.config import BrokerConfig, ConfigError
from headrace.errors import ErrorCode, KafkaError
from headrace.extras import missing
from headrace.storage.dirs.owned_dirs import OwnedDirs

if TYPE_CHECKING:
    import asyncio

    from headrace.adoption.plan import Adoption
    from headrace.broker.membership.member import Member
    from headrace.cluster.metadata_cache import MetadataCache


def cluster_of(directories: Sequence[Path]) -> str | None:
    """Return the cluster id in the metadata file, or None. It is valid even if `meta.properties` is lost.

    Raises KafkaError(kafka_storage_error) if the file cannot be read.
    """
    try:
        return founded_cluster(metadata_file(directories)) if directories else None
    except StoreError as error:
        raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error


def refuse_without_metadata(owned: OwnedDirs) -> None:
    """Raise KafkaError if the metadata, which no working log directory contains, may be in a missing one."""
    reason = owned.why_metadata_may_be_elsewhere()
    if reason is not None:
        raise KafkaError(
            ErrorCode.kafka_storage_error,
            f"{METADATA_FILE}, which contains the cluster's topics, is in none of the working log directories, and"
            f" {reason}. Restore that directory and start again. If it is lost for good, remove it from log.dirs: the"
            " topics in the other directories are then served with default settings, but keep all records",
        )


def refuse_own_metadata(directories: Sequence[Path], founded: str | None) -> None:
    """Raise KafkaError if the directories belong to a one-broker cluster: they cannot be used in another cluster."""
    if founded is not None:
        raise KafkaError(
            ErrorCode.inconsistent_cluster_id,
            f"{metadata_file(directories)} belongs to cluster {founded}, which has only this broker: remove "
            "zookeeper.connect to start that cluster, or set log.dirs to empty directories to join a cluster",
        )


def first_operations(adoption: "Adoption | None", node_id: int) -> Sequence[Operation]:
    """Return the first operations of a new metadata tree, which create the topics of adopted directories."""
    if adoption is None:
        return ()
    from headrace.adoption.plan import adopted

    return adopted(adoption, node_id)


def new_member(
    config: BrokerConfig, zookeeper: str, cache: "MetadataCache", loop: "asyncio.AbstractEventLoop"
) -> "Member":
    """Return a member of the cluster at `zookeeper`, not yet connected.

    Raises ConfigError if kazoo is missing, or if the settings do not allow this broker to join.
    """
    try:
        from headrace.broker.membership.member import Member
    except ModuleNotFoundError as error:
        if (found := missing(error)) is None:
            raise
        raise ConfigError("zookeeper.connect", None, f"ZooKeeper needs the package {found[0]}: {found[1]}") from None
    return Member(config, zookeeper, cache, loop)
