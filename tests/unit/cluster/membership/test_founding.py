"""The first broker creates a cluster in ZooKeeper."""

from headrace.cluster import znodes
from headrace.cluster.membership.founding import found_cluster
from tests.unit.cluster.membership.watched_store import WatchedMemory


async def test_an_empty_tree_gets_the_nodes_of_kafka(tree_without_nodes: WatchedMemory) -> None:
    await found_cluster(tree_without_nodes)
    assert len(znodes.decode_cluster_id((await tree_without_nodes.get(znodes.CLUSTER_ID)).data)) == 22
    for path in znodes.IN_ZOOKEEPER:
        assert await tree_without_nodes.exists(path) is not None
    assert await tree_without_nodes.children("/config") == ["brokers", "changes", "clients", "ips", "topics", "users"]


async def test_a_cluster_keeps_its_id(tree: WatchedMemory) -> None:
    await found_cluster(tree)
    assert znodes.decode_cluster_id((await tree.get(znodes.CLUSTER_ID)).data) == "c"
