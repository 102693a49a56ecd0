"""The states of a classic group, as data."""

from enum import StrEnum


class GroupState(StrEnum):
    """States of a classic group, by the names that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    """No members; the group may have offsets.

    action: joins of new and pending members are accepted, other requests with a member id get UNKNOWN_MEMBER_ID;
            offset commits without a generation (simple consumers) are accepted; offsets expire.
    transition: a first member joins => PREPARING_REBALANCE
    """
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are asked to rejoin.

    action: heartbeats and syncs get REBALANCE_IN_PROGRESS; joins are parked; commits of the old generation pass.
    transition: all have rejoined or the timeout is over => COMPLETING_REBALANCE, or EMPTY without members
    """
    COMPLETING_REBALANCE = "CompletingRebalance"
    """Members have joined the generation and wait for the leader's assignment.

    action: syncs are parked until the leader's assignment is written; commits get REBALANCE_IN_PROGRESS.
    transition: the leader's assignment is written => STABLE; a new member, a join with new metadata, a member that
                leaves, fails or does not sync in time => PREPARING_REBALANCE
    """
    STABLE = "Stable"
    """Every member has its assignment.

    action: syncs get the current assignment; heartbeats and commits are accepted.
    transition: a member joins, changes its metadata, leaves or fails, or the leader rejoins => PREPARING_REBALANCE
    """
    DEAD = "Dead"
    """The group has moved to another coordinator or switched to the consumer protocol.

    action: all requests get COORDINATOR_NOT_AVAILABLE.
    transition: none
    """


VALID_PREVIOUS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY},
    ),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}
