"""Preview and hold leader elections."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.cli.cluster import Cluster
from headrace.cli.placement import requests
from headrace.cli.placement.state import Partition, Place, State

NOT_NEEDED: Final = "not needed"
POSSIBLE: Final = "possible"
IMPOSSIBLE: Final = "impossible"
ELECTED: Final = "elected"
FAILED: Final = "failed"
_SETTLED_S = 5.0
"""Maximum time to wait until a new leader is in the brokers' metadata, which lags behind the controller."""
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Election:
    """A partition before and after its election."""

    place: Place
    before: int | None
    """The leader before the election; None if there was none."""
    after: int | None
    """The leader after the election or, in a preview, the expected leader; None if there is none."""
    state: str
    reason: str | None
    """The reason for a state other than `POSSIBLE` and `ELECTED`, or a warning about lost records."""


def preview(state: State, partition: Partition, *, unclean: bool) -> Election:
    """Predict the result of an election."""
    return _unclean(state, partition) if unclean else _preferred(state, partition)


def hold(cluster: Cluster, election: int, planned: Sequence[Election]) -> list[Election]:
    """Hold the possible elections. Return all results once the brokers report them, or after `_SETTLED_S`."""
    asked = {one.place for one in planned if one.state == POSSIBLE}
    refused = requests.elect(cluster, election, asked) if asked else {}
    deadline = time.monotonic() + _SETTLED_S
    while True:
        state = requests.read_state(cluster, sizes=False, needs_moves=False)
        results = [_result(state, one, refused) if one.place in asked else one for one in planned]
        if all(one.state != FAILED or one.place in refused for one in results) or time.monotonic() > deadline:
            return results
        time.sleep(_PAUSE_S)


def _preferred(state: State, partition: Partition) -> Election:
    preferred = partition.replicas[0]
    found = Election(partition.place, partition.leader, preferred, POSSIBLE, None)
    if partition.leader == preferred:
        return replace(found, state=NOT_NEEDED, reason="led by its preferred replica")
    if preferred not in state.brokers:
        return replace(found, after=None, state=IMPOSSIBLE, reason=f"broker {preferred} is not alive")
    if preferred not in partition.isr:
        return replace(found, after=None, state=IMPOSSIBLE, reason=f"broker {preferred} is not in sync")
    return found


def _unclean(state: State, partition: Partition) -> Election:
    found = Election(partition.place, partition.leader, None, POSSIBLE, None)
    if partition.leader is not None:
        return replace(found, after=partition.leader, state=NOT_NEEDED, reason="has a leader")
    live = [broker for broker in partition.replicas if broker in state.brokers]
    if not live:
        missing = ", ".join(map(str, partition.replicas))
        return replace(found, state=IMPOSSIBLE, reason=f"none of its brokers is alive: {missing}")
    synced = [broker for broker in live if broker in partition.isr]
    return replace(found, after=(synced or live)[0], reason=None if synced else "records may be lost")


def _result(state: State, planned: Election, refused: dict[Place, requests.Refusal]) -> Election:
    partition = state.partitions.get(planned.place)
    leader = None if partition is None else partition.leader
    error = refused.get(planned.place)
    if error is not None and error.name == "ELECTION_NOT_NEEDED":
        return replace(planned, after=leader, state=NOT_NEEDED, reason="another election came first")
    if error is not None:
        return replace(planned, after=leader, state=FAILED, reason=f"{error.description} ({error.name})")
    if leader is None or leader == planned.before:
        return replace(planned, after=leader, state=FAILED, reason="the brokers do not report a new leader yet")
    return replace(planned, after=leader, state=ELECTED)
