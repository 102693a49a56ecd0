"""Select the replica that a consumer should read from: one in its rack that has the records (KIP-392). Pure."""

from collections.abc import Callable

from headrace.replication.leading.leader_state import LeaderState


def preferred_replica(
    state: LeaderState, offset: int, rack: str, *, leader: int, rack_of: Callable[[int], str | None]
) -> int | None:
    """Return the follower that a consumer in `rack` should read `offset` from; None for the leader.

    `rack_of` returns None for brokers that are down or have no rack. Only in-sync followers are chosen: the others may
    never catch up.
    """
    if not rack or rack_of(leader) == rack:
        return None
    near = [
        (follower.end_offset, follower.caught_up_ms, replica)
        for replica, follower in state.followers.items()
        if replica in state.isr
        and follower.log_start_offset <= offset <= follower.end_offset
        and rack_of(replica) == rack
    ]
    return max(near)[2] if near else None
