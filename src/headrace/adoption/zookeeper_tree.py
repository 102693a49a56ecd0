"""The metadata tree of a Kafka cluster in ZooKeeper: read it to take a directory over, write it to hand one over.

No broker of the cluster may be running.
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
_NOT_ADOPTABLE: Final = {"/config/users": "user", "/config/clients": "client quota", "/config/ips": "IP quota"}
_ACLS: Final = "/kafka-acl"


class ZooKeeperTree:
    """A ZooKeeper session, as a context manager. `address` is `zookeeper.connect`: host:port,host:port/path.

    Raises KafkaError: invalid_request for a malformed address; when entered, request_timed_out if ZooKeeper does not
    respond; when left, unknown_server_error if ZooKeeper lost or refused a request.
    """

    def __init__(self, address: str) -> None:
        from kazoo.client import KazooClient

        self.address = address
        servers, slash, chroot = address.partition("/")
        self._root = f"/{chroot}" if slash and chroot else ""
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # our errors are more helpful
        try:
            self._client: Any = KazooClient(hosts=servers, timeout=_CONNECT_TIMEOUT_S)
        except ValueError as error:
            what = f"'{address}' is not a ZooKeeper address, HOST:PORT or HOST:PORT/PATH: {error}"
            raise KafkaError(ErrorCode.invalid_request, what) from None

    def __enter__(self) -> Self:
        from kazoo.handlers.threading import KazooTimeoutError

        try:
            self._client.start(timeout=_CONNECT_TIMEOUT_S)
        except (KazooTimeoutError, ValueError, OSError) as error:
            self._close()
            raise KafkaError(
                ErrorCode.request_timed_out,
                f"ZooKeeper at {self.address} did not respond within {_CONNECT_TIMEOUT_S:.0f} s: check that it is "
                "running, and that the address is the zookeeper.connect in Kafka's server.properties",
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from kazoo.exceptions import KazooException

        self._close()
        if isinstance(error, KazooException):
            raise KafkaError(
                ErrorCode.unknown_server_error,
                f"ZooKeeper at {self.address} lost or refused a request ({type(error).__name__}): check its log, and"
                " run the command again",
            ) from error

    def _close(self) -> None:
        self._client.stop()
        self._client.close()

    def get(self, path: str) -> bytes | None:
        """Return the data of a node; None if it does not exist."""
        from kazoo.exceptions import NoNodeError

        try:
            return bytes(self._client.get(self._root + path)[0])
        except NoNodeError:
            return None

    def children(self, path: str) -> list[str]:
        """Return the sorted names of a node's children; empty if it does not exist."""
        from kazoo.exceptions import NoNodeError

        try:
            return sorted(self._client.get_children(self._root + path))
        except NoNodeError:
            return []

    def put(self, path: str, data: bytes) -> None:
        """Write a node; create it and its parents if they do not exist."""
        from kazoo.exceptions import NodeExistsError

        try:
            self._client.create(self._root + path, data, makepath=True)
        except NodeExistsError:
            self._client.set(self._root + path, data)

    def remove(self, path: str) -> None:
        """Delete a node and everything below it."""
        self._client.delete(self._root + path, recursive=True)

    def cluster_id(self) -> str | None:
        """Return the id of the tree's cluster; None for a new tree."""
        data = self.get(znodes.CLUSTER_ID)
        return None if data is None else znodes.decode_cluster_id(data)


def check_idle(tree: ZooKeeperTree) -> None:
    """Raise KafkaError(duplicate_broker_registration) if a broker of the cluster is running."""
    running = tree.children(znodes.BROKER_IDS)
    if running:
        raise KafkaError(
            ErrorCode.duplicate_broker_registration,
            f"Kafka is running on ZooKeeper {tree.address} (broker ids: {', '.join(running)}). Stop it first; after a "
            "kill, wait for zookeeper.session.timeout.ms (18 s)",
        )


def read_cluster(tree: ZooKeeperTree) -> KafkaCluster:
    """Read topics, settings and producer ids. Raises KafkaError(unsupported_version) for a topic without an id."""
    cluster = KafkaCluster(f"ZooKeeper at {tree.address}")
    deleted = set(tree.children(_DELETED))
    for name in tree.children(znodes.TOPICS):
        topic_id, replicas = znodes.decode_topic(tree.get(znodes.topic_path(name)) or b"{}")
        if topic_id is None:
            raise KafkaError(
                ErrorCode.unsupported_version,
                f"topic {name} has no id: run Kafka 2.8 or later on the cluster once, to create topic ids (KIP-516)",
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
    for path, what in _NOT_ADOPTABLE.items():
        cluster.left_behind[what].update(f"{path}/{child}" for child in tree.children(path))
    for kind in tree.children(_ACLS):
        cluster.left_behind["ACL"].update(f"{kind}/{child}" for child in tree.children(f"{_ACLS}/{kind}"))
    return cluster


def write_tree(tree: ZooKeeperTree, nodes: Mapping[str, bytes], broker_id: int) -> None:
    """Write or update the tree of a cluster whose only broker is `broker_id`.

    Raises KafkaError(inconsistent_cluster_id) if the tree belongs to another cluster or has topics of other brokers.
    """
    ours = znodes.decode_cluster_id(nodes[znodes.CLUSTER_ID])
    theirs = tree.cluster_id()
    if theirs not in (None, ours):
        raise KafkaError(
            ErrorCode.inconsistent_cluster_id,
            f"ZooKeeper {tree.address} belongs to cluster {theirs}, not {ours}: use an empty ZooKeeper, or an empty "
            f"path in this one, for example {tree.address.partition('/')[0]}/{ours.lower()[:8]}",
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
                f"topic {name} in ZooKeeper {tree.address} has replicas on other brokers: the directory is not "
                "from that cluster",
            )
        if znodes.topic_path(name) not in nodes:
            yield name
