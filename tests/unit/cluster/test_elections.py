import uuid
from dataclasses import replace

from headrace.cluster.controller.elections import elect
from headrace.cluster.image import NEVER_WRITTEN, NO_LEADER, MetadataImage, PartitionImage, TopicImage
from headrace.cluster.store import Create, Set
from tests.unit.cluster.clusters import broker, cluster_of

WRITTEN = 20
"""The zxid of a partition's state."""


def led_by(leader: int, replicas: tuple[int, ...] = (1,), isr: tuple[int, ...] | None = None) -> PartitionImage:
    return PartitionImage(leader, 4, replicas, replicas if isr is None else isr, 9, WRITTEN)


def image_of(partition: PartitionImage, registered: dict[int, int]) -> MetadataImage:
    """Return a cluster in which `registered` maps brokers to the zxids of their registrations."""
    brokers = (broker(broker_id)._replace(epoch=epoch) for broker_id, epoch in registered.items())
    return cluster_of().with_brokers(brokers).with_topics([TopicImage("t", uuid.uuid4(), (partition,))])


def elected(partition: PartitionImage, registered: dict[int, int]) -> PartitionImage:
    topics, _ = elect(image_of(partition, registered))
    return topics[0].partitions[0]


def test_a_restarted_leader_gets_the_next_epoch() -> None:
    partition = elected(led_by(1), {1: 30})
    assert (partition.leader, partition.leader_epoch, partition.version) == (1, 5, 10)


def test_a_leader_that_registered_before_the_state_was_written_stays() -> None:
    assert elect(image_of(led_by(1, (1, 2)), {1: 10, 2: 10})) == ([], [])


def test_the_registration_of_another_broker_does_not_affect_a_leader() -> None:
    assert elect(image_of(led_by(1, (1, 2)), {1: 10, 2: 30})) == ([], [])


def test_an_elected_leader_stays_until_it_registers_again() -> None:
    partition = elected(led_by(1), {1: 30, 2: 35})
    assert elect(image_of(partition, {1: 30, 2: 35})) == ([], [])
    assert elected(partition, {1: 40, 2: 35}).leader_epoch == 6


def test_a_running_replica_is_preferred_to_a_restarted_leader() -> None:
    partition = elected(led_by(1, (1, 2, 3)), {1: 30, 2: 31, 3: 10})
    assert (partition.leader, partition.isr) == (3, (3,))


def test_the_first_live_in_sync_replica_leads_and_dead_ones_leave_the_isr() -> None:
    partition = elected(led_by(1, (1, 2, 3), isr=(3, 1)), {2: 10, 3: 10})
    assert (partition.leader, partition.isr) == (3, (3,))


def test_without_a_live_in_sync_replica_there_is_no_leader_and_the_isr_stays() -> None:
    partition = elected(led_by(1, (1, 2), isr=(1,)), {2: 10})
    assert (partition.leader, partition.leader_epoch, partition.isr) == (NO_LEADER, 5, (1,))


def test_a_partition_without_a_leader_is_written_once() -> None:
    assert elect(image_of(led_by(NO_LEADER), {2: 10})) == ([], [])


def test_a_restarted_replica_leads_a_partition_without_a_leader() -> None:
    assert elected(led_by(NO_LEADER), {1: 30}).leader == 1


def test_writes_are_conditional_on_the_version_that_was_read() -> None:
    _, operations = elect(image_of(led_by(1), {1: 30}))
    (operation,) = operations
    assert isinstance(operation, Set)
    assert (operation.path, operation.version) == ("/brokers/topics/t/partitions/0/state", 9)


def test_the_first_election_creates_the_state() -> None:
    never_led = PartitionImage(NO_LEADER, -1, (1,), (1,), NEVER_WRITTEN)
    assert elected(never_led, {1: 30}) == PartitionImage(1, 0, (1,), (1,), 0, 30)
    _, operations = elect(image_of(never_led, {1: 30}))
    assert all(isinstance(operation, Create) for operation in operations)


def test_writes_carry_the_controllers_epoch() -> None:
    image = replace(image_of(led_by(1), {1: 30}), controller_epoch=77)
    _, operations = elect(image)
    assert isinstance(operations[0], Set)
    assert b'"controller_epoch":77' in operations[0].data
