"""Create a cluster in ZooKeeper, as its first broker does."""

from headrace.cluster import znodes
from headrace.cluster.store import Create, MetadataStore, NodeExistsError
from headrace.wire.ids import id_to_text, new_id


async def found_cluster(store: MetadataStore) -> None:
    """Create the nodes of a cluster, unless the tree has a cluster id already."""
    while await store.exists(znodes.CLUSTER_ID) is None:
        nodes = await store.get_many(znodes.IN_ZOOKEEPER)
        missing = [Create(path) for path, node in zip(znodes.IN_ZOOKEEPER, nodes, strict=True) if node is None]
        cluster_id = Create(znodes.CLUSTER_ID, znodes.encode_cluster_id(id_to_text(new_id())))
        try:
            await store.multi([*missing, cluster_id])
        except NodeExistsError:
            continue  # another broker was faster
