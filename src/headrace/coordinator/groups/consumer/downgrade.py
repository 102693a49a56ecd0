"""Convert a group to the classic protocol when its last member of the consumer protocol leaves (KIP-848)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from headrace.coordinator.groups.consumer.draft import member_tombstones, no_more_timers
from headrace.coordinator.groups.consumer.member import ConsumerMember
from headrace.coordinator.groups.consumer.state import NO_PARTITIONS, ConsumerState
from headrace.coordinator.groups.effects import (
    Downgraded,
    Timer,
    TimerKind,
)
from headrace.coordinator.groups.records.classic import (
    GroupKey,
    GroupMetadata,
    MemberMetadata,
)
from headrace.coordinator.groups.records.consumer import TopicIdPartition
from headrace.coordinator.groups.records.embedded import CONSUMER_PROTOCOL_TYPE, encode_assignment
from headrace.coordinator.groups.subscriptions import Topics
from headrace.coordinator.runtime.results import CancelTimer, Result

_DOWNGRADES: Final = frozenset({"downgrade", "bidirectional"})


class Downgrade:
    """Converts one group from the consumer protocol to the classic protocol."""

    def __init__(self, known: ConsumerState, topics: Topics) -> None:
        self._known = known
        self._topics = topics

    def is_possible(self, members: dict[str, ConsumerMember]) -> bool:
        """Return True if `members` can form a classic group."""
        settings = self._known.settings
        return (
            bool(members)
            and all(member.classic is not None for member in members.values())
            and settings.group_consumer_migration_policy in _DOWNGRADES
            and len(members) <= settings.group_max_size
        )

    def decide(
        self,
        out: Result[None],
        members: dict[str, ConsumerMember],
        now_ms: int,
        *,
        replacing: ConsumerMember | None,
        reason: str | None,
    ) -> None:
        """Write `members`, all of the classic protocol, as a classic group.

        Members keep their partitions and get those that they wait for. The new member that takes the place of the
        static member `replacing` gets its partitions.
        """
        known = self._known
        protocols = {m.member_id: m.classic.protocols for m in members.values() if m.classic is not None}
        selected = _select_protocol(protocols)
        described = []
        for member in members.values():
            assert member.classic is not None
            subscription = next(metadata for name, metadata in member.classic.protocols if name == selected)
            is_new = replacing is not None and member.instance_id == replacing.instance_id
            former_id = replacing.member_id if is_new and replacing is not None else member.member_id
            # A member gets the partitions that it still reads, and those of its target that no member reads.
            assigned = {one for one, owner in known.owners.items() if owner == former_id}
            assigned.update(one for one in known.target.get(former_id, NO_PARTITIONS) if one not in known.owners)
            described.append(
                MemberMetadata(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.classic.session_timeout_ms,
                    subscription=subscription,
                    assignment=encode_assignment(
                        with_names(assigned, self._topics), int.from_bytes(subscription[:2], "big")
                    ),
                )
            )
        # On reload, a record without a leader means that a rebalance is due.
        leader = described[0].member_id if reason is None else None
        metadata = GroupMetadata(CONSUMER_PROTOCOL_TYPE, known.epoch, selected, leader, now_ms, tuple(described))
        for member_id in {*known.members, *members}:
            out.effects += no_more_timers(member_id)
        out.effects.append(CancelTimer(Timer(TimerKind.ASSIGNMENT)))
        out.records += known.tombstones()
        if replacing is not None:
            # The decision has created records of the new member already.
            for member_id in members.keys() - known.members.keys():
                out.records += member_tombstones(known.group_id, member_id)
        full_reason = None if reason is None else f"Downgrade group {known.group_id} from consumer to classic {reason}."
        out.records.append((GroupKey(known.group_id), metadata))
        out.effects.append(Downgraded(protocols=protocols, reason=full_reason))


def with_names(partitions: Iterable[TopicIdPartition], topics: Topics) -> dict[str, list[int]]:
    """Group partitions by topic name, without those of deleted topics."""
    out: dict[str, list[int]] = {}
    for one in sorted(partitions):
        name = topics.name_of(one.topic_id)
        if name is not None:
            out.setdefault(name, []).append(one.partition)
    return out


def _select_protocol(protocols: Mapping[str, tuple[tuple[str, bytes], ...]]) -> str:
    """Return the protocol that most members prefer among those that all support."""
    shared = set.intersection(*({name for name, _ in offered} for offered in protocols.values()))
    votes = Counter(next(name for name, _ in offered if name in shared) for offered in protocols.values())
    return max(votes, key=votes.__getitem__)
