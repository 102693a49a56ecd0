"""Elect leaders when brokers come and go. Pure."""

from headrace.cluster import znodes
from headrace.cluster.image import NEVER_WRITTEN, NO_LEADER, MetadataImage, PartitionImage, TopicImage
from headrace.cluster.store import Create, Operation, Set


def elect(image: MetadataImage) -> tuple[list[TopicImage], list[Operation]]:
    """Elect a leader, under the next leader epoch, for every partition whose leader is or was dead.

    A leader was dead if it has registered since the partition's state was written: its log may have lost its end.
    Returns the changed topics and the writes of their state.
    A partition without a live in-sync replica has no leader until one comes back. Its in-sync set stays, because only
    these replicas have all acknowledged records.
    """
    newest = newest_registration(image)
    topics: list[TopicImage] = []
    operations: list[Operation] = []
    for topic in image.topics.values():
        partitions = tuple(_elected(partition, image, newest) for partition in topic.partitions)
        if partitions == topic.partitions:
            continue
        for index, (old, new) in enumerate(zip(topic.partitions, partitions, strict=True)):
            if new is not old:
                operations.extend(_write(topic.name, index, old, new, image.controller_epoch))
        topics.append(topic._replace(partitions=partitions))
    return topics, operations


def newest_registration(image: MetadataImage) -> int:
    """Return the zxid of the latest registration of a live broker; -1 without one."""
    return max((broker.epoch for broker in image.brokers.values()), default=-1)


def _write(topic: str, index: int, old: PartitionImage, new: PartitionImage, controller_epoch: int) -> list[Operation]:
    path, state = znodes.state_path(topic, index), znodes.encode_state(new, controller_epoch)
    if old.version == NEVER_WRITTEN:
        # The controller that assigned the replicas stopped before it elected a leader.
        return [Create(znodes.partition_path(topic, index)), Create(path, state)]
    return [Set(path, state, old.version)]


def _elected(partition: PartitionImage, image: MetadataImage, newest: int) -> PartitionImage:
    leader = image.brokers.get(partition.leader)
    if leader is not None and leader.epoch <= partition.zxid:
        return partition
    in_sync = [replica for replica in partition.replicas if replica in image.brokers and replica in partition.isr]
    if not in_sync and partition.leader == NO_LEADER:
        return partition
    steady = [replica for replica in in_sync if image.brokers[replica].epoch <= partition.zxid] or in_sync
    return PartitionImage(
        steady[0] if steady else NO_LEADER,
        partition.leader_epoch + 1,
        partition.replicas,
        tuple(steady) or partition.isr,
        partition.version + 1,
        newest,
    )
