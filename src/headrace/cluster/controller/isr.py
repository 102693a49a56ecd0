"""Accept or refuse the ISR changes that leaders propose: AlterPartition (KIP-497, KIP-841, KIP-903). Pure.

Kafka's controller in ZooKeeper mode trusts the sender to be the leader. This controller checks that, like KRaft's: any
client can send the request, and without the leader in the ISR, a partition could lose records or stay offline forever.

`remove_restarted` is for a new controller: followers that restarted before it took office may have lost records.
"""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.cluster.controller.context import UNKNOWN_EPOCH, Context
from headrace.cluster.controller.selectors import RECOVERING, has_restarted
from headrace.cluster.controller.work import Work
from headrace.cluster.image import LeaderState
from headrace.errors import ErrorCode
from headrace.types import TopicPartition


class Proposal(NamedTuple):
    """The ISR that a leader proposes: pairs of broker id and broker epoch, -1 if unknown."""

    partition: TopicPartition
    leader_epoch: int
    version: int
    """The leader's partition epoch."""
    isr: Sequence[tuple[int, int]]
    recovery: int = 0

    @property
    def brokers(self) -> tuple[int, ...]:
        return tuple(broker for broker, _ in self.isr)


def decide(context: Context, leader: int, proposal: Proposal) -> LeaderState | ErrorCode | None:
    """Return None to accept the proposal, else the state or error to reply with. Checks are in Kafka's order."""
    state = context.states.get(proposal.partition)
    if state is None:
        return ErrorCode.unknown_topic_or_partition
    if proposal.version > state.version or proposal.leader_epoch > state.leader_epoch:
        # Another controller has written a later state.
        return ErrorCode.not_controller
    if proposal.leader_epoch < state.leader_epoch:
        return ErrorCode.fenced_leader_epoch
    proposed = (leader, sorted(proposal.brokers), proposal.recovery)
    if proposed == (state.leader, sorted(state.isr), state.recovery):
        return state  # a repeated request, whose version is out of date
    if proposal.version < state.version:
        return ErrorCode.invalid_update_version
    if leader != state.leader or not _is_valid(context, proposal, state):
        return ErrorCode.invalid_request
    if proposal.recovery == RECOVERING and (len(proposal.isr) > 1 or state.recovery != RECOVERING):
        return ErrorCode.invalid_request
    if not all(_is_eligible(context, broker, epoch) for broker, epoch in proposal.isr):
        return ErrorCode.ineligible_replica
    return None


def _is_valid(context: Context, proposal: Proposal, state: LeaderState) -> bool:
    """Return False for an ISR without the leader, with a broker twice, or that adds a broker without a replica."""
    members = set(proposal.brokers)
    if state.leader not in members or len(members) < len(proposal.isr):
        return False
    return members - set(state.isr) <= set(context.assignment(proposal.partition).replicas)


def _is_eligible(context: Context, broker: int, epoch: int) -> bool:
    """Return False for a broker that is dead, is shutting down, or has restarted since the proposal."""
    return broker in context.live and epoch in (UNKNOWN_EPOCH, context.brokers[broker].epoch)


def remove_restarted(work: Work) -> None:
    """Remove followers that restarted after an earlier controller wrote the partition's state."""
    context = work.context
    for partition, state in context.states.items():
        steady = tuple(
            member for member in state.isr if member == state.leader or not has_restarted(context, member, state)
        )
        if len(steady) < len(state.isr) and partition.topic not in context.deleting:
            work.set_state(partition, state.elected(state.leader, steady))
            assignment = context.assignment(partition)
            work.batch.lead(assignment.replicas, partition, assignment)
