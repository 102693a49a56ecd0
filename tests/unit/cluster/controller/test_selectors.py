"""Which replica leads: the four strategies."""

import uuid
from collections.abc import Mapping

from headrace.cluster.controller import selectors
from headrace.cluster.controller.context import Context
from headrace.cluster.controller.selectors import Elected
from headrace.cluster.image import NO_LEADER, Assignment, LeaderState
from headrace.types import TopicPartition
from tests.unit.cluster.clusters import broker

T0 = TopicPartition("t", 0)
WRITTEN = 20
"""The zxid of a partition's state."""


def cluster(registered: Mapping[int, int], assignment: Assignment, *stopping: int) -> Context:
    """Return a context in which `registered` maps live brokers to their epochs."""
    context = Context(0, 1)
    context.brokers = {broker_id: broker(broker_id)._replace(epoch=epoch) for broker_id, epoch in registered.items()}
    context.stopping = set(stopping)
    context.add_topic("t", uuid.uuid4())
    context.assign(T0, assignment)
    return context


def state(leader: int, *isr: int) -> LeaderState:
    return LeaderState(leader, 4, isr, 9, 1, zxid=WRITTEN)


def offline(registered: Mapping[int, int], replicas: tuple[int, ...], known: LeaderState) -> LeaderState | None:
    select = selectors.offline(unclean=lambda _: False)
    return _state(select(cluster(registered, Assignment(replicas)), T0, known))


def _state(elected: Elected | None) -> LeaderState | None:
    return None if elected is None else elected.state


def test_the_first_live_in_sync_replica_leads_and_dead_ones_leave_the_isr() -> None:
    assert offline({2: 10, 3: 10}, (1, 2, 3), state(1, 3, 1)) == state(3, 3)._replace(leader_epoch=5)


def test_without_a_live_in_sync_replica_nobody_leads() -> None:
    assert offline({2: 10}, (1, 2), state(1, 1)) is None


def test_a_running_replica_is_preferred_to_a_restarted_leader() -> None:
    assert offline({1: 30, 2: 31, 3: 10}, (1, 2, 3), state(1, 1, 2, 3)) == state(3, 3)._replace(leader_epoch=5)


def test_a_restarted_leader_leads_again_if_nobody_else_can() -> None:
    assert offline({1: 30}, (1,), state(1, 1)) == state(1, 1)._replace(leader_epoch=5)


def test_a_restarted_replica_leads_a_partition_without_a_leader() -> None:
    assert offline({1: 30}, (1,), state(NO_LEADER, 1)) == state(1, 1)._replace(leader_epoch=5)


def test_an_unclean_election_takes_any_live_replica_and_leaves_the_partition_recovering() -> None:
    select = selectors.offline(unclean=lambda topic: topic == "t")
    elected = select(cluster({2: 10, 3: 10}, Assignment((1, 2, 3))), T0, state(1, 1))
    assert elected == Elected(state(2, 2)._replace(leader_epoch=5, recovery=1), (2, 3))


def test_an_unclean_election_prefers_the_isr() -> None:
    select = selectors.offline(unclean=lambda _: True)
    elected = select(cluster({2: 10, 3: 10}, Assignment((1, 2, 3))), T0, state(1, 1, 3))
    assert elected is not None
    assert (elected.state.leader, elected.state.recovery) == (3, 0)


def test_a_failed_directory_is_like_a_dead_broker() -> None:
    context = cluster({1: 10, 2: 10}, Assignment((1, 2)))
    context.offline_logs = {1: {T0}}
    elected = selectors.offline(unclean=lambda _: False)(context, T0, state(1, 1, 2))
    assert _state(elected) == state(2, 2)._replace(leader_epoch=5)


def test_a_reassigned_partition_is_led_by_its_target() -> None:
    context = cluster({1: 10, 2: 10, 3: 10}, Assignment((2, 3, 1), (2, 3), (1,)))
    elected = selectors.reassigned(context, T0, state(1, 1, 3, 2))
    assert elected == Elected(state(2, 1, 3, 2)._replace(leader_epoch=5), (2, 3))


def test_the_preferred_leader_is_the_first_replica() -> None:
    context = cluster({1: 10, 2: 10}, Assignment((1, 2)))
    assert _state(selectors.preferred(context, T0, state(2, 1, 2))) == state(1, 1, 2)._replace(leader_epoch=5)


def test_a_preferred_leader_that_is_not_in_sync_does_not_lead() -> None:
    assert selectors.preferred(cluster({1: 10, 2: 10}, Assignment((1, 2))), T0, state(2, 2)) is None


def test_a_preferred_leader_that_shuts_down_does_not_lead() -> None:
    assert selectors.preferred(cluster({1: 10, 2: 10}, Assignment((1, 2)), 1), T0, state(2, 1, 2)) is None


def test_a_broker_that_shuts_down_hands_over_and_leaves_the_isr() -> None:
    context = cluster({1: 10, 2: 10, 3: 10}, Assignment((1, 2, 3)), 1)
    elected = selectors.controlled_shutdown(context, T0, state(1, 1, 2, 3))
    assert elected == Elected(state(2, 2, 3)._replace(leader_epoch=5), (1, 2, 3))


def test_a_broker_that_shuts_down_leads_on_if_nobody_else_is_in_sync() -> None:
    context = cluster({1: 10, 2: 10}, Assignment((1, 2)), 1)
    assert selectors.controlled_shutdown(context, T0, state(1, 1)) is None
