"""The controller's decisions, one event at a time."""

import pytest

from headrace.cluster.commands import DURING_DELETION
from headrace.cluster.controller.batches import Announce, Lead, Stop
from headrace.cluster.controller.isr import Proposal
from headrace.cluster.image import NO_LEADER
from headrace.errors import ErrorCode, KafkaError
from headrace.types import TopicPartition
from tests.support.speed import cpu_limit
from tests.unit.cluster.controller.world import World

T0 = TopicPartition("t", 0)
NONE = ErrorCode.none


def world_of(brokers: int, *partitions: tuple[int, ...]) -> World:
    """Return a world of live brokers 1 to n, and a topic t with these replicas."""
    world = World(*range(1, brokers + 1))
    world.create("t", *partitions)
    return world


def state(world: World) -> tuple[int, int, tuple[int, ...]]:
    """Return the leader, the leader epoch and the ISR of t-0."""
    known = world.states()[T0]
    return known.leader, known.leader_epoch, known.isr


def change_isr(world: World, *isr: int, partition: TopicPartition = T0) -> None:
    """Let the leader of a partition change its ISR."""
    state = world.states()[partition]
    leader = world.brokers[state.leader]
    proposal = Proposal(partition, state.leader_epoch, state.version, [(broker, -1) for broker in isr])
    answers, effects = world.machine.alter_partitions(leader.id, leader.epoch, [proposal])
    world.carry_out(effects)
    assert not isinstance(answers[partition], ErrorCode)


def propose(world: World, leader_epoch: int, version: int, *isr: tuple[int, int]) -> object:
    """Return the answer to a proposal of broker 1 for the partition T0."""
    answers, effects = world.machine.alter_partitions(
        1, world.brokers[1].epoch, [Proposal(T0, leader_epoch, version, isr)]
    )
    world.carry_out(effects)
    return answers[T0]


def test_a_partition_begins_with_its_live_replicas() -> None:
    world = World(1, 2, 3)
    world.kill(1)
    world.create("t", (1, 2, 3))
    state = world.states()[T0]
    assert (state.leader, state.leader_epoch, state.isr, state.version) == (2, 0, (2, 3), 0)


def test_a_partition_whose_replicas_are_all_dead_waits_for_one() -> None:
    world = World(1, 2)
    world.kill(2)
    world.create("t", (2,))
    assert T0 not in world.states()
    world.start(2)
    assert world.states()[T0].leader == 2


def test_new_partitions_of_a_topic_are_led() -> None:
    world = world_of(2, (1,))
    world.grow("t", (2,))
    assert world.states()[TopicPartition("t", 1)].leader == 2


def test_a_broker_gets_one_order_of_each_kind_for_many_partitions() -> None:
    world = world_of(3, *[(1, 2, 3)] * 20)
    assert [type(send.order) for send in world.sent if send.broker_id == 2] == [Lead, Announce]
    (lead,) = world.orders(Lead, 2)
    assert isinstance(lead.order, Lead)
    assert len(lead.order.partitions) == 20


def test_only_replicas_are_led_but_all_brokers_are_told() -> None:
    world = world_of(3, (1, 2))
    assert [send.broker_id for send in world.orders(Lead)] == [1, 2]
    assert [send.broker_id for send in world.orders(Announce)] == [1, 2, 3]


def test_dead_replicas_leave_the_isr_and_a_dead_leader_is_replaced_under_the_next_epoch() -> None:
    world = world_of(3, (1, 2, 3))
    world.kill(3)
    assert state(world) == (1, 1, (1, 2))
    world.kill(1)
    assert state(world) == (2, 2, (2,))


def test_the_last_member_of_the_isr_stays_in_it() -> None:
    world = world_of(2, (1, 2))
    world.kill(2)
    world.kill(1)
    assert (world.states()[T0].leader, world.states()[T0].isr) == (NO_LEADER, (1,))


def test_a_topic_may_allow_unclean_elections() -> None:
    world = World(1, 2, unclean=["t"])
    world.create("t", (1, 2))
    change_isr(world, 1)
    world.kill(1)
    state = world.states()[T0]
    assert (state.leader, state.isr, state.recovery) == (2, (2,), 1)
    assert world.machine.unclean_elections == 1


def test_unclean_elections_can_be_allowed_later() -> None:
    world = world_of(2, (1, 2))
    change_isr(world, 1)
    world.kill(1)
    world.unclean.add("t")
    world.carry_out(world.machine.enable_unclean("t"))
    assert world.states()[T0].leader == 2


def test_a_broker_that_restarted_unnoticed_is_treated_as_if_it_had_died() -> None:
    world = world_of(2, (1, 2))
    world.start(1)
    assert state(world) == (2, 1, (2,))


def test_a_leader_that_restarted_between_two_controllers_gets_another_epoch() -> None:
    world = world_of(1, (1,))
    world.register(1)
    world.take_office()
    assert (world.states()[T0].leader, world.states()[T0].leader_epoch) == (1, 1)


def test_a_follower_that_restarted_between_two_controllers_leaves_the_isr() -> None:
    world = world_of(3, (1, 2, 3))
    world.register(2)
    world.take_office()
    assert state(world) == (1, 1, (1, 3))
    orders = [send.order for send in world.orders(Lead) if isinstance(send.order, Lead)]
    assert [order.partitions[T0].isr for order in orders] == [(1, 3)] * 3


def test_a_follower_that_died_together_with_the_controller_leaves_the_isr() -> None:
    world = world_of(3, (1, 2, 3))
    del world.brokers[3]
    world.take_office()
    assert state(world) == (1, 1, (1, 2))
    orders = [send.order for send in world.orders(Lead) if isinstance(send.order, Lead)]
    assert [order.partitions[T0].isr for order in orders] == [(1, 2)] * 2


def test_a_new_controller_first_orders_what_clients_wait_for() -> None:
    """Partitions whose leader died with the previous controller come before those that go on."""
    world = world_of(3, (1, 2, 3), (2, 3, 1), (3, 1, 2))
    del world.brokers[3]
    world.take_office()
    first, second = (send.order for send in world.orders(Lead, 1) if isinstance(send.order, Lead))
    assert [partition.partition for partition in first.partitions] == [2]
    assert [partition.partition for partition in second.partitions] == [0, 1]
    assert {partition: state.isr for partition, state in world.states().items()} == {
        TopicPartition("t", 0): (1, 2),
        TopicPartition("t", 1): (2, 1),
        TopicPartition("t", 2): (1, 2),
    }


def test_a_new_controller_keeps_the_epochs_of_leaders_that_stayed() -> None:
    world = world_of(2, (1, 2))
    world.take_office()
    assert (world.states()[T0].leader_epoch, world.states()[T0].version) == (0, 0)


def test_a_starting_broker_learns_of_all_partitions() -> None:
    world = world_of(2, (1,))
    world.start(3)
    announced = [send.order for send in world.orders(Announce, 3)]
    assert any(isinstance(order, Announce) and T0 in order.partitions for order in announced)


def test_a_deleted_topic_loses_its_leader_and_replicas_stop_before_they_are_deleted() -> None:
    world = world_of(2, (1, 2))
    world.delete("t")
    (announce,) = world.orders(Announce, 1)
    assert isinstance(announce.order, Announce)
    assert announce.order.partitions[T0].state.leader == DURING_DELETION
    stops = [send.order.replicas[T0] for send in world.orders(Stop, 2) if isinstance(send.order, Stop)]
    assert [(stopped.leader_epoch, stopped.delete) for stopped in stops] == [(-2, False), (-2, True)]


def test_a_topic_disappears_with_its_last_replica() -> None:
    world = world_of(2, (1, 2))
    world.delete("t")
    world.deliver(1)
    assert "t" in world.topics()
    world.deliver(2)
    assert "t" not in world.topics()
    assert not world.deletions()


def test_the_next_controller_finishes_a_deletion() -> None:
    world = world_of(2, (1, 2))
    world.kill(2)
    world.delete("t")
    world.settle()
    world.take_office()
    world.settle()
    assert "t" in world.topics()
    world.start(2)
    world.settle()
    assert "t" not in world.topics()


def test_a_deleted_topic_can_be_created_again() -> None:
    world = world_of(1, (1,))
    world.delete("t")
    world.settle()
    world.create("t", (1,))
    assert world.states()[T0].leader == 1


def test_a_deletion_ends_a_reassignment() -> None:
    world = world_of(3, (1, 2))
    world.reassign({T0: (3,)})
    world.delete("t")
    world.settle()
    assert "t" not in world.topics()
    assert not world.machine.context.moving


def test_a_reassignment_adds_a_new_replica_before_it_removes_another() -> None:
    world = world_of(3, (1, 2))
    assert world.reassign({T0: (3, 1)}) == {T0: NONE}
    assignment = world.assignment("t", 0)
    assert (assignment.replicas, assignment.adding, assignment.removing) == ((3, 1, 2), (3,), (2,))
    assert not [send for send in world.orders(Stop) if send.broker_id == 2]
    new = {
        send.broker_id: send.order.partitions[T0].is_new for send in world.orders(Lead) if isinstance(send.order, Lead)
    }
    assert new == {1: False, 2: False, 3: True}
    change_isr(world, 1, 2, 3)
    assert world.assignment("t", 0).replicas == (3, 1)
    assert world.states()[T0].isr == (1, 3)
    world.settle()
    assert T0 not in world.brokers[2].logs


def test_a_large_reassignment_writes_a_topic_once_when_it_begins_and_once_when_it_ends() -> None:
    world = world_of(3, *[(1, 2)] * 20)
    written: list[str] = []
    world.on_write = lambda operation: written.append(operation.path)
    world.reassign({TopicPartition("t", index): (3, 1) for index in range(20)})
    assert written.count("/brokers/topics/t") == 1
    proposals = [
        Proposal(partition, state.leader_epoch, state.version, [(1, -1), (2, -1), (3, -1)])
        for partition, state in world.states().items()
    ]
    _, effects = world.machine.alter_partitions(1, world.brokers[1].epoch, proposals)
    world.carry_out(effects)
    assert written.count("/brokers/topics/t") == 2
    assert {assignment.replicas for assignment in world.topics()["t"].assignments.values()} == {(3, 1)}


def test_a_reassignment_to_thousands_of_unknown_brokers_is_refused_quickly() -> None:
    world = world_of(3, (1, 2))
    with cpu_limit(1):
        assert world.reassign({T0: range(20_000)}) == {T0: ErrorCode.invalid_replica_assignment}


def test_a_reassigned_partition_gets_a_leader_of_the_target() -> None:
    world = world_of(3, (1, 2))
    world.reassign({T0: (3,)})
    change_isr(world, 1, 2, 3)
    assert (world.states()[T0].leader, world.states()[T0].isr) == (3, (3,))


def test_a_cancelled_reassignment_deletes_what_it_added() -> None:
    world = world_of(3, (1, 2))
    world.reassign({T0: (3, 1)})
    world.settle()
    assert T0 in world.brokers[3].logs
    assert world.reassign({T0: None}) == {T0: NONE}
    world.settle()
    assert sorted(world.assignment("t", 0).replicas) == [1, 2]
    assert T0 not in world.brokers[3].logs


def reassignment_led_by_an_added_replica() -> World:
    """Return a world whose partition moves from broker 1 to 2 and 3, and is led by 2 already."""
    world = world_of(4, (1,))
    world.reassign({T0: (2, 3)})
    change_isr(world, 1, 2)
    _, effects = world.machine.elect([T0])
    world.carry_out(effects)
    assert world.states()[T0].leader == 2
    return world


def test_a_reassignment_whose_leader_is_not_in_the_next_target_gets_another() -> None:
    world = reassignment_led_by_an_added_replica()
    assert world.reassign({T0: (3, 4)}) == {T0: NONE}
    assert (world.states()[T0].leader, world.states()[T0].isr) == (1, (1,))


def test_a_reassignment_from_a_replica_that_died_with_the_controller_cannot_be_cancelled() -> None:
    world = reassignment_led_by_an_added_replica()
    del world.brokers[1]
    world.take_office()
    assert world.reassign({T0: None}) == {T0: ErrorCode.invalid_replica_assignment}
    assert (world.states()[T0].leader, world.states()[T0].isr) == (2, (2,))


def test_a_reassignment_that_would_leave_no_replica_in_sync_is_refused() -> None:
    world = world_of(3, (1, 2))
    world.reassign({T0: (3, 1)})
    change_isr(world, 1)
    assert world.reassign({T0: (2, 3)}) == {T0: ErrorCode.none}  # 1 stays until they are in sync
    change_isr(world, 1, 3)
    world.kill(1)
    assert world.states()[T0].isr == (3,)
    assert world.reassign({T0: None}) == {T0: ErrorCode.invalid_replica_assignment}


def test_impossible_reassignments_are_refused() -> None:
    world = world_of(2, (1, 2))
    assert world.reassign({T0: None}) == {T0: ErrorCode.no_reassignment_in_progress}
    for target in ((), (1, 1), (-1,), (1, 9)):
        assert world.reassign({T0: target}) == {T0: ErrorCode.invalid_replica_assignment}, target
    unknown = TopicPartition("t", 7)
    assert world.reassign({unknown: (1,)}) == {unknown: ErrorCode.unknown_topic_or_partition}


def test_a_move_in_progress_counts_its_new_replicas() -> None:
    world = world_of(3, (1, 2))
    world.reassign({T0: (1, 2, 3)})
    refused, _ = world.machine.reassign({T0: (1, 2)}, resize=False)
    error = refused[T0]
    assert error is not None
    assert error.code is ErrorCode.invalid_replication_factor


def test_a_shrinking_and_a_growing_isr_raise_only_the_partition_epoch() -> None:
    world = world_of(2, (1, 2))
    change_isr(world, 1)
    change_isr(world, 1, 2)
    assert (world.states()[T0].leader_epoch, world.states()[T0].version) == (0, 2)


def test_proposals_are_checked_against_the_state() -> None:
    world = world_of(3, (1, 2, 3))
    change_isr(world, 1, 2)
    version = world.states()[T0].version
    assert propose(world, 1, version, (1, -1)) is ErrorCode.not_controller
    assert propose(world, 0, version + 1, (1, -1)) is ErrorCode.not_controller
    assert propose(world, 0, version - 1, (1, -1)) is ErrorCode.invalid_update_version
    assert propose(world, 0, version - 1, (2, -1), (1, -1)) == world.machine.context.states[T0]
    world.kill(2)
    assert propose(world, 0, version, (1, -1)) is ErrorCode.fenced_leader_epoch
    version, epoch = world.states()[T0].version, world.states()[T0].leader_epoch
    assert propose(world, epoch, version, (1, -1), (2, -1)) is ErrorCode.ineligible_replica
    assert propose(world, epoch, version, (1, -1), (3, 999)) is ErrorCode.ineligible_replica


def test_only_the_leader_changes_the_isr_and_only_to_replicas_that_include_it() -> None:
    world = world_of(4, (1, 2, 3))
    before = world.states()[T0]
    refused: list[tuple[int, tuple[int, ...]]] = [
        (2, (1, 2)),
        (2, (2, 3)),
        (1, ()),
        (1, (2, 3)),
        (1, (1, 1)),
        (1, (1, 2, 4)),
    ]
    for sender, isr in refused:
        proposal = Proposal(T0, before.leader_epoch, before.version, [(broker, -1) for broker in isr])
        answers, effects = world.machine.alter_partitions(sender, world.brokers[sender].epoch, [proposal])
        world.carry_out(effects)
        assert answers[T0] is ErrorCode.invalid_request, (sender, isr)
        assert world.states()[T0] == before


def test_a_proposal_of_a_broker_that_has_restarted_is_refused() -> None:
    world = world_of(2, (1, 2))
    with pytest.raises(KafkaError) as caught:
        world.machine.alter_partitions(1, world.brokers[1].epoch - 1, [])
    assert caught.value.code is ErrorCode.stale_broker_epoch


def test_a_broker_that_stops_leads_nothing_and_follows_nothing() -> None:
    world = world_of(2, (1, 2), (2, 1))
    remaining, effects = world.machine.shut_down(1, world.brokers[1].epoch)
    world.carry_out(effects)
    assert not remaining
    assert [state.leader for state in world.states().values()] == [2, 2]
    assert [state.isr for state in world.states().values()] == [(2,), (2,)]


def test_the_last_replica_in_sync_cannot_hand_over() -> None:
    world = world_of(2, (1, 2))
    change_isr(world, 1)
    remaining, _ = world.machine.shut_down(1, world.brokers[1].epoch)
    assert remaining == [T0]


def test_replicas_in_failed_directories_lose_their_partitions() -> None:
    world = world_of(2, (1, 2))
    world.settle()
    world.brokers[1].failed.add(T0)
    world.carry_out(world.machine.directories_failed([1]))
    world.settle()
    state = world.states()[T0]
    assert (state.leader, state.isr) == (2, (2,))
    assert world.brokers[2].announced[T0].offline == (1,)


def test_the_preferred_leader_is_elected_on_request() -> None:
    world = world_of(2, (1, 2))
    world.kill(1)
    world.start(1)
    change_isr(world, 2, 1)
    results, effects = world.machine.elect([T0])
    world.carry_out(effects)
    assert results == {T0: 1}
    assert world.states()[T0].leader == 1


def test_leaders_are_balanced_when_too_many_are_elsewhere() -> None:
    world = world_of(2, *[(1, 2)] * 4)
    world.kill(1)
    world.start(1)
    for index in range(4):
        change_isr(world, 2, 1, partition=TopicPartition("t", index))
    assert not world.machine.balance(100)
    world.carry_out(world.machine.balance(10))
    assert {state.leader for state in world.states().values()} == {1}
