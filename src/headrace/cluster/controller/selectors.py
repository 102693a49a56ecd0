"""Choose a partition's leader: the four strategies of Kafka's controller. Pure.

Every selector returns the new state, under the next leader epoch, and the brokers to inform; None if no replica may
lead.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from headrace.cluster.controller.context import Context
from headrace.cluster.image import LeaderState
from headrace.types import TopicPartition


class Elected(NamedTuple):
    """A new state, and the brokers that get it in LeaderAndIsr."""

    state: LeaderState
    recipients: tuple[int, ...]


Selector: TypeAlias = Callable[[Context, TopicPartition, LeaderState], Elected | None]

RECOVERING = 1


def offline(*, unclean: Callable[[str], bool]) -> Selector:
    """Select the first online replica in the ISR; if there is none and `unclean` allows it, the first online replica.

    `unclean` returns True for a topic that may lose records to become available. ISR members that have restarted since
    the state was written may have lost records: they leave the ISR if another online member has not restarted.
    """

    def select(context: Context, partition: TopicPartition, state: LeaderState) -> Elected | None:
        online = _online(context, partition)
        in_sync = [replica for replica in online if replica in state.isr]
        steady = [replica for replica in in_sync if not has_restarted(context, replica, state)] or in_sync
        if steady:
            isr = tuple(replica for replica in state.isr if replica in steady)
            return Elected(state.elected(steady[0], isr), online)
        if online and unclean(partition.topic):
            return Elected(state.elected(online[0], online[:1], recovery=RECOVERING), online)
        return None

    return select


def has_restarted(context: Context, broker: int, state: LeaderState) -> bool:
    """Return True if the broker has registered since another controller wrote the state."""
    return state.zxid >= 0 and broker in context.brokers and context.brokers[broker].epoch > state.zxid


def reassigned(context: Context, partition: TopicPartition, state: LeaderState) -> Elected | None:
    """Select the first online in-sync replica of a reassignment's target."""
    target = context.assignment(partition).target
    for replica in target:
        if replica in state.isr and context.is_online(replica, partition):
            return Elected(state.elected(replica, state.isr), target)
    return None


def preferred(context: Context, partition: TopicPartition, state: LeaderState) -> Elected | None:
    """Select the first replica of the assignment, if it is online and in sync."""
    replicas = context.assignment(partition).replicas
    if not replicas or replicas[0] not in state.isr or not context.is_online(replicas[0], partition):
        return None
    return Elected(state.elected(replicas[0], state.isr), replicas)


def controlled_shutdown(context: Context, partition: TopicPartition, state: LeaderState) -> Elected | None:
    """Select the first online in-sync replica on a broker that is not shutting down. Stopping brokers leave the ISR."""
    recipients = tuple(
        replica
        for replica in context.assignment(partition).replicas
        if context.is_online(replica, partition, or_stopping=True)
    )
    for replica in recipients:
        if replica in state.isr and replica not in context.stopping:
            isr = tuple(member for member in state.isr if member not in context.stopping)
            return Elected(state.elected(replica, isr), recipients)
    return None


def _online(context: Context, partition: TopicPartition) -> tuple[int, ...]:
    return tuple(replica for replica in context.assignment(partition).replicas if context.is_online(replica, partition))
