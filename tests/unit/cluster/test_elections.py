import uuid
from dataclasses import replace

from headrace.cluster.controller.elections import elect
from headrace.cluster.image import NEVER_WRITTEN, NO_LEADER, MetadataImage, PartitionImage, TopicImage
from headrace.cluster.store import Create, Set
from tests.unit.cluster.clusters import cluster_of


def image_of(partition: PartitionImage, *brokers: int) -> MetadataImage:
    return cluster_of(*brokers).with_topics([TopicImage("t", uuid.uuid4(), (partition,))])


def elected(image: MetadataImage) -> PartitionImage:
    topics, _ = elect(image)
    return topics[0].partitions[0]


def test_a_leader_that_comes_back_leads_under_the_next_epoch() -> None:
    assert elected(image_of(PartitionImage(1, 4, (1,), (1,), 9), 1)) == PartitionImage(1, 5, (1,), (1,), 10)


def test_the_first_live_replica_in_sync_leads_and_the_dead_leave_the_in_sync_set() -> None:
    partition = elected(image_of(PartitionImage(1, 4, (1, 2, 3), (3, 1), 9), 2, 3))
    assert (partition.leader, partition.isr) == (3, (3,))


def test_without_a_live_in_sync_replica_nobody_leads_and_the_in_sync_set_stays() -> None:
    partition = elected(image_of(PartitionImage(1, 4, (1, 2), (1,), 9), 2))
    assert (partition.leader, partition.leader_epoch, partition.isr) == (NO_LEADER, 5, (1,))


def test_a_partition_without_a_leader_is_not_written_again_and_again() -> None:
    assert elect(image_of(PartitionImage(NO_LEADER, 4, (1,), (1,), 9), 2)) == ([], [])


def test_the_state_is_written_only_over_the_version_that_was_read() -> None:
    _, operations = elect(image_of(PartitionImage(1, 4, (1,), (1,), 9), 1))
    (operation,) = operations
    assert isinstance(operation, Set)
    assert (operation.path, operation.version) == ("/brokers/topics/t/partitions/0/state", 9)


def test_a_partition_that_was_never_led_gets_its_first_state() -> None:
    image = image_of(PartitionImage(NO_LEADER, -1, (1,), (1,), NEVER_WRITTEN), 1)
    assert elected(image) == PartitionImage(1, 0, (1,), (1,), 0)
    _, operations = elect(image)
    assert all(isinstance(operation, Create) for operation in operations)


def test_writes_carry_the_controllers_epoch() -> None:
    image = replace(image_of(PartitionImage(1, 4, (1,), (1,), 9), 1), controller_epoch=77)
    _, operations = elect(image)
    assert isinstance(operations[0], Set)
    assert b'"controller_epoch":77' in operations[0].data
