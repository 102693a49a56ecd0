"""Who leads each partition when brokers come and go. Pure."""

from headrace.cluster import znodes
from headrace.cluster.image import NEVER_WRITTEN, NO_LEADER, MetadataImage, PartitionImage, TopicImage
from headrace.cluster.store import Create, Operation, Set


def elect(image: MetadataImage) -> tuple[list[TopicImage], list[Operation]]:
    """Give every partition a leader among the live brokers of `image`, under the next leader epoch.

    Returns the topics that changed and the writes of their state. A partition without a live in-sync replica has no
    leader until one comes back; its in-sync set stays, because only those replicas hold all that was acknowledged.
    """
    topics: list[TopicImage] = []
    operations: list[Operation] = []
    for topic in image.topics.values():
        partitions = tuple(_elected(partition, image) for partition in topic.partitions)
        if partitions == topic.partitions:
            continue
        for index, (old, new) in enumerate(zip(topic.partitions, partitions, strict=True)):
            if new is not old:
                operations.extend(_write(topic.name, index, old, new, image.controller_epoch))
        topics.append(topic._replace(partitions=partitions))
    return topics, operations


def _write(topic: str, index: int, old: PartitionImage, new: PartitionImage, controller_epoch: int) -> list[Operation]:
    path, state = znodes.state_path(topic, index), znodes.encode_state(new, controller_epoch)
    if old.version == NEVER_WRITTEN:
        # The controller that assigned the replicas went before it named a leader.
        return [Create(znodes.partition_path(topic, index)), Create(path, state)]
    return [Set(path, state, old.version)]


def _elected(partition: PartitionImage, image: MetadataImage) -> PartitionImage:
    in_sync = [replica for replica in partition.replicas if replica in image.brokers and replica in partition.isr]
    if not in_sync and partition.leader == NO_LEADER:
        return partition
    return partition._replace(
        leader=in_sync[0] if in_sync else NO_LEADER,
        leader_epoch=partition.leader_epoch + 1,
        isr=tuple(in_sync) or partition.isr,
        version=partition.version + 1,
    )
