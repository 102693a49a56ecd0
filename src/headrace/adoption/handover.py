"""Move directories between Headrace and Kafka 3.x with ZooKeeper, including the metadata.

Neither Headrace nor Kafka may be running.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headrace.adoption.found_directories import METADATA_FILE, metadata_file, plan_adoption
from headrace.adoption.plan import Adoption, adopted
from headrace.adoption.zookeeper_tree import ZooKeeperTree, check_idle, read_cluster, write_tree
from headrace.clock import now_ms
from headrace.cluster.commands import Command
from headrace.cluster.controller.office import Office
from headrace.cluster.failures import StoreFailures
from headrace.cluster.store import StoreError
from headrace.cluster.stores.embedded import EmbeddedStore
from headrace.cluster.stores.metadata_file import founded_cluster, read_tree
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.dirs.meta_properties import stored_broker_id

HANDED_OVER: Final = f"{METADATA_FILE}.handed-over"
_ZOOKEEPER_VERSION: Final = 0
"""Version of `meta.properties`, the only one that Kafka with ZooKeeper accepts."""


def hand_over(directories: Sequence[Path], zookeeper: str) -> tuple[int, str, int]:
    """Hand the directories over to Kafka with ZooKeeper. Return the broker id, cluster id and number of topics.

    Writes topics, settings and producer ids to ZooKeeper. Raises KafkaError, after which the call can be repeated.
    """
    broker_id = stored_broker_id(directories)
    metadata = metadata_file(directories)
    cluster_id = _cluster_id(metadata)
    if broker_id is None or cluster_id is None:
        raise KafkaError(
            ErrorCode.kafka_storage_error,
            f"no data of a Headrace broker in {', '.join(map(str, directories))}: {METADATA_FILE} or meta.properties "
            "is missing. Give all directories of the broker's log.dirs",
        )
    log_dirs = LogDirs.survey(directories, broker_id=broker_id, cluster_id=cluster_id)
    try:
        nodes = read_tree(metadata)
        with ZooKeeperTree(zookeeper) as tree:
            check_idle(tree)
            write_tree(tree, nodes, broker_id)
        log_dirs.owned.identify_as(_ZOOKEEPER_VERSION)
        metadata.replace(metadata.with_name(HANDED_OVER))
    except (OSError, StoreError) as error:
        raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
    finally:
        log_dirs.close({})
    topics = sum(1 for path in nodes if path.startswith("/brokers/topics/") and path.count("/") == 3)
    return broker_id, cluster_id, topics


def take_over(directories: Sequence[Path], zookeeper: str, config: BrokerConfig) -> Adoption:
    """Take over directories of a Kafka broker with ZooKeeper: its topics, settings and producer ids.

    The directories' own files are not changed until a broker starts on them. Raises KafkaError.
    """
    broker_id = stored_broker_id(directories)
    if broker_id is None:
        raise KafkaError(
            ErrorCode.kafka_storage_error,
            f"no meta.properties in {', '.join(map(str, directories))}: give all directories of Kafka's log.dirs",
        )
    metadata = metadata_file(directories)
    if _cluster_id(metadata) is not None:
        raise KafkaError(
            ErrorCode.kafka_storage_error,
            f"{metadata} exists: Headrace already uses this directory. Start the broker without a takeover. If Kafka "
            f"has used the directory since then, move {metadata.name} away and take the directory over again",
        )
    config.take_node_id(broker_id)
    with ZooKeeperTree(zookeeper) as tree:
        cluster_id = tree.cluster_id()
        if cluster_id is None:
            raise KafkaError(
                ErrorCode.inconsistent_cluster_id,
                f"ZooKeeper {zookeeper} contains no Kafka cluster: give the value of zookeeper.connect in Kafka's "
                "server.properties, including its path",
            )
        check_idle(tree)
        cluster = read_cluster(tree)
    log_dirs = LogDirs.survey(directories, broker_id=config.node_id, cluster_id=cluster_id)
    try:
        adoption = plan_adoption(log_dirs, cluster, config)
        asyncio.run(_write_metadata(metadata_file(log_dirs.directories), cluster_id, adoption, config))
    finally:
        log_dirs.close({})
    return adoption


async def _write_metadata(metadata: Path, cluster_id: str, adoption: Adoption, config: BrokerConfig) -> None:
    try:
        office = Office(EmbeddedStore(metadata), config.node_id, StoreFailures(), deliver=_drop, now_ms=now_ms)
        await office.take(cluster_id, adopted(adoption, config.node_id))
        await office.close()
    except StoreError as error:
        raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error


async def _drop(_: int, __: Command) -> None:
    """Drop the command: no broker is running."""


def _cluster_id(metadata: Path) -> str | None:
    try:
        return founded_cluster(metadata)
    except StoreError as error:
        raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
