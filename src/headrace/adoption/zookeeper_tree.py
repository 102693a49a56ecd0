"""The metadata tree of a Kafka cluster in ZooKeeper, as a whole: read when a directory comes from such a cluster,
written when one goes to it. No broker of the cluster may be running.
"""

import logging
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

from headrace.adoption.kafka_cluster import KafkaCluster, KafkaPartition
from headrace.cluster import znodes
from headrace.cluster.image import ConfigResource
from headrace.errors import ErrorCode, KafkaError

_CONNECT_TIMEOUT_S: Final = 10.0
_DELETED: Final = "/admin/delete_topics"
_ADOPTED_CONFIGS: Final = ("topics", "brokers")
_LEFT_BEHIND: Final = {"/config/users": "user", "/config/clients": "client quota", "/config/ips": "IP quota"}
_ACLS: Final = "/kafka-acl"


class ZooKeeperTree:
    """A session; a context manager. `address` is Kafka's `zookeeper.connect`: host:port, commas, a path at the end.

    Every call raises KafkaError(request_timed_out) where ZooKeeper does not answer.
    """

    def __init__(self, address: str) -> None:
        from kazoo.client import KazooClient

        self.address = address
        servers, slash, chroot = address.partition("/")
        self._root = f"/{chroot}" if slash and chroot else ""
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # what goes wrong is told in our words
        self._client: Any = KazooClient(hosts=servers, timeout=_CONNECT_TIMEOUT_S)

    def __enter__(self) -> Self:
        from kazoo.handlers.threading import KazooTimeoutError

        try:
            self._client.start(timeout=_CONNECT_TIMEOUT_S)
        except (KazooTimeoutError, ValueError, OSError) as error:
            self._close()
            raise KafkaError(
                ErrorCode.request_timed_out,
                f"no ZooKeeper answers at {self.address} within {_CONNECT_TIMEOUT_S:.0f} s: is it running, and is that "
                "its address (zookeeper.connect in Kafka's server.properties)?",
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._client.stop()
        self._client.close()

    def get(self, path: str) -> bytes | None:
        """What the node holds; None where there is none."""
        from kazoo.exceptions import NoNodeError

        try:
            return bytes(self._client.get(self._root + path)[0])
        except NoNodeError:
            return None

    def children(self, path: str) -> list[str]:
        """Names of the node's children, sorted; none where there is no such node."""
        from kazoo.exceptions import NoNodeError

        try:
            return sorted(self._client.get_children(self._root + path))
        except NoNodeError:
            return []

    def put(self, path: str, data: bytes) -> None:
        """Let the node hold `data`, making it and its parents where they are missing."""
        from kazoo.exceptions import NodeExistsError

        try:
            self._client.create(self._root + path, data, makepath=True)
        except NodeExistsError:
            self._client.set(self._root + path, data)

    def remove(self, path: str) -> None:
        """Remove the node and all below it."""
        self._client.delete(self._root + path, recursive=True)

    def cluster_id(self) -> str | None:
        """Of the cluster whose tree it is; None for a new one."""
        data = self.get(znodes.CLUSTER_ID)
        return None if data is None else znodes.decode_cluster_id(data)


def check_idle(tree: ZooKeeperTree) -> None:
    """Raise KafkaError(duplicate_broker_registration) where a broker of the cluster is running."""
    running = tree.children(znodes.BROKER_IDS)
    if running:
        raise KafkaError(
            ErrorCode.duplicate_broker_registration,
            f"Kafka is running on ZooKeeper {tree.address}: broker {', '.join(running)}. Stop it first; one that was "
            "killed goes away by itself after zookeeper.session.timeout.ms (18 s)",
        )


def read_cluster(tree: ZooKeeperTree) -> KafkaCluster:
    """What the tree says of topics, settings and producer ids."""
    cluster = KafkaCluster(f"ZooKeeper at {tree.address}")
    deleted = set(tree.children(_DELETED))
    for name in tree.children(znodes.TOPICS):
        topic_id, replicas = znodes.decode_topic(tree.get(znodes.topic_path(name)) or b"{}")
        if topic_id is None:
            raise KafkaError(
                ErrorCode.unsupported_version,
                f"topic {name} has no id: start Kafka 2.8 or later on the cluster once, which gives it one (KIP-516)",
            )
        if name in deleted:
            cluster.removed.add(topic_id)
            continue
        cluster.topics[name] = topic_id
        cluster.partitions[topic_id] = {}
        for index, brokers in replicas.items():
            state = tree.get(znodes.state_path(name, index))
            epoch = znodes.decode_state(state, 0, brokers).leader_epoch if state else -1
            cluster.partitions[topic_id][index] = KafkaPartition(brokers, epoch)
    for kind in _ADOPTED_CONFIGS:
        for name in tree.children(f"{znodes.CONFIG}/{kind}"):
            values = znodes.decode_config(tree.get(f"{znodes.CONFIG}/{kind}/{name}") or b"")
            cluster.configs[ConfigResource(kind, znodes.desanitize(name))] = values
    block = tree.get(znodes.PRODUCER_ID_BLOCK)
    if block:
        cluster.next_producer_id = znodes.decode_producer_ids(block)[1] + 1
    for path, what in _LEFT_BEHIND.items():
        cluster.left_behind[what] += len(tree.children(path))
    cluster.left_behind["ACL"] += sum(len(tree.children(f"{_ACLS}/{kind}")) for kind in tree.children(_ACLS))
    return cluster


def write_tree(tree: ZooKeeperTree, nodes: Mapping[str, bytes], broker_id: int) -> None:
    """Put the tree of broker `broker_id`, its cluster's only one, there; a later run brings an earlier one up to date.

    Raises KafkaError(inconsistent_cluster_id) where another cluster, or another broker's topics, are in the way.
    """
    ours = znodes.decode_cluster_id(nodes[znodes.CLUSTER_ID])
    theirs = tree.cluster_id()
    if theirs not in (None, ours):
        raise KafkaError(
            ErrorCode.inconsistent_cluster_id,
            f"ZooKeeper {tree.address} belongs to cluster {theirs}, not {ours}: use an empty one, or an empty path in "
            f"it ({tree.address.partition('/')[0]}/{ours.lower()[:8]})",
        )
    obsolete = list(_topics_to_remove(tree, nodes, broker_id))
    for path in sorted(nodes):
        if path != znodes.CLUSTER_ID:
            tree.put(path, nodes[path])
    for name in obsolete:
        tree.remove(znodes.topic_path(name))
    tree.put(znodes.CLUSTER_ID, nodes[znodes.CLUSTER_ID])


def _topics_to_remove(tree: ZooKeeperTree, nodes: Mapping[str, bytes], broker_id: int) -> Iterator[str]:
    for name in tree.children(znodes.TOPICS):
        _, replicas = znodes.decode_topic(tree.get(znodes.topic_path(name)) or b"{}")
        if any(brokers != (broker_id,) for brokers in replicas.values()):
            raise KafkaError(
                ErrorCode.inconsistent_cluster_id,
                f"topic {name} in ZooKeeper {tree.address} has replicas on other brokers: the directory did not come "
                "from that cluster",
            )
        if znodes.topic_path(name) not in nodes:
            yield name
