"""The groups and offsets of one partition of `__consumer_offsets`: decides what to write, and replays what was written.

Pure: appending, timers and replies are the runtime's. Every decision is a list of (key, value) pairs; a value of None
is a tombstone. `replay` is the only code that changes offsets and removes groups.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from headrace.coordinator.groups.classic.group import ClassicGroup
from headrace.coordinator.groups.consumer.records import (
    ConsumerGroupKey,
    ConsumerKey,
    ConsumerValue,
    PartitionMetadataKey,
    decode_value,
)
from headrace.coordinator.groups.migration import upgrade
from headrace.coordinator.groups.mixed_group import MixedGroup
from headrace.coordinator.groups.offsets import Offsets
from headrace.coordinator.groups.records import (
    NO_TIMESTAMP,
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    OffsetKey,
    UnknownKey,
    Value,
    WrittenKey,
    decode_group,
    decode_key,
    decode_offset,
    encode,
)
from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.groups.subscriptions import Topics
from headrace.errors import ErrorCode, KafkaError
from headrace.types import new_tuple

Change: TypeAlias = tuple[WrittenKey, Value | None]
Decision: TypeAlias = list[Change]
Group: TypeAlias = ClassicGroup | MixedGroup


OffsetToCommit: TypeAlias = tuple[str, int, CommittedOffset]
"""Topic, partition, and what to commit for it."""


class GroupShard:
    """State of one shard; times in ms."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()

    encode = staticmethod(encode)

    def __len__(self) -> int:
        return len(self.groups)

    def group(self, group_id: str) -> Group:
        """Raises KafkaError(group_id_not_found)."""
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
        return group

    def add_group(self, group_id: str, now_ms: int) -> ClassicGroup:
        """A new, empty group."""
        group = self.groups[group_id] = ClassicGroup(
            group_id,
            max_size=self._settings.group_max_size,
            initial_rebalance_delay_ms=self._settings.group_initial_rebalance_delay_ms,
            now_ms=now_ms,
        )
        return group

    def classic_group(self, group_id: str) -> ClassicGroup:
        """Raises KafkaError(group_id_not_found)."""
        group = self.group(group_id)
        if not isinstance(group, ClassicGroup):
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} is not a classic group.")
        return group

    def consumer_group(self, group_id: str, topics: Topics) -> tuple[MixedGroup, Decision]:
        """The group, and what has to be written for it to be one of the consumer protocol: nothing for one that is, or
        is new. It is not in `groups` before its first record.

        Raises KafkaError(group_id_not_found) for a classic group with members that has to stay one.
        """
        group = self.groups.get(group_id)
        if isinstance(group, MixedGroup):
            return group, []
        new = MixedGroup(group_id, self._settings)
        if group is None or group.is_empty:
            return new, self.decide_removal(group_id)
        conversion = upgrade(group, self._settings.of(group_id), topics)
        for key, value in conversion:
            new.replay(key, value)
        return new, [*self.decide_removal(group_id), *conversion]

    # Decisions

    def decide_removal(self, group_id: str) -> Decision:
        """Tombstones for the group, of whichever protocol; its offsets stay."""
        group = self.groups.get(group_id)
        if isinstance(group, MixedGroup):
            return [*group.tombstones()]
        return [] if group is None else [(GroupKey(group_id), None)]

    def decide_commit(self, group_id: str, offsets: Sequence[OffsetToCommit]) -> tuple[list[ErrorCode], Decision]:
        """One error code per offset, and the records of those without."""
        errors: list[ErrorCode] = []
        decision: Decision = []
        limit = self._settings.offset_metadata_max_bytes
        for topic, partition, value in offsets:
            if len(value.metadata) > limit:
                errors.append(ErrorCode.offset_metadata_too_large)
            else:
                errors.append(ErrorCode.none)
                decision.append((new_tuple(OffsetKey, (group_id, topic, partition)), value))
        return errors, decision

    def decide_delete(self, group_id: str) -> Decision:
        """Tombstones for the group and all its offsets.

        Raises KafkaError: group_id_not_found, non_empty_group.
        """
        if not self.group(group_id).is_empty:
            raise KafkaError(ErrorCode.non_empty_group, "stop all members of the group before deleting it")
        decision: Decision = [(key, None) for key in self.offsets.keys(group_id)]
        return decision + self.decide_removal(group_id)

    def decide_delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> tuple[list[ErrorCode], Decision]:
        """One error code per partition, and tombstones for the offsets that exist.

        Raises KafkaError: group_id_not_found, non_empty_group (members that are not consumers, KIP-496).
        """
        group = self.group(group_id)
        if not group.is_empty and not group.is_consumer:
            raise KafkaError(ErrorCode.non_empty_group)
        errors = []
        decision: Decision = []
        for topic, partition in partitions:
            if group.is_subscribed_to(topic):
                errors.append(ErrorCode.group_subscribed_to_topic)
                continue
            errors.append(ErrorCode.none)
            key = OffsetKey(group_id, topic, partition)
            if self.offsets.get(*key) is not None or self.offsets.has_pending(key):
                decision.append((key, None))
        return errors, decision

    def decide_topics_deleted(self, topics: frozenset[str], group_id: str) -> Decision:
        """Tombstones for every offset of the group in topics that are gone."""
        return [(key, None) for key in self.offsets.keys_of_topics(topics, group_id)]

    def decide_expiry(self, now_ms: int) -> Decision:
        """Tombstones for offsets past their retention, and for empty groups left without any (KIP-211)."""
        decision: Decision = []
        for group in self.groups.values():
            all_expired = True
            for key, offset in self._offsets_of(group.group_id):
                if self._is_expired(group, key, offset, now_ms):
                    decision.append((key, None))
                else:
                    all_expired = False
            if all_expired and group.is_empty and not self.offsets.has_open_transaction(group.group_id):
                decision += self.decide_removal(group.group_id)
        return decision

    def expiring(self, until_ms: int) -> dict[str, int]:
        """Groups that lose an offset by `until_ms` if nothing happens, and when the first of them is lost (ms)."""
        out: dict[str, int] = {}
        for group in self.groups.values():
            times = [self._expires_at(group, key, offset) for key, offset in self._offsets_of(group.group_id)]
            first = min((each for each in times if each is not None), default=None)
            if first is not None and first <= until_ms:
                out[group.group_id] = first
        return out

    def _offsets_of(self, group_id: str) -> Iterator[tuple[OffsetKey, CommittedOffset]]:
        for topic, partitions in self.offsets.of_group(group_id).items():
            for partition, offset in partitions.items():
                yield OffsetKey(group_id, topic, partition), offset

    def _is_expired(self, group: Group, key: OffsetKey, offset: CommittedOffset, now_ms: int) -> bool:
        expires_at = self._expires_at(group, key, offset)
        return expires_at is not None and now_ms >= expires_at

    def _expires_at(self, group: Group, key: OffsetKey, offset: CommittedOffset) -> int | None:
        """In ms; None while the offset must be kept."""
        kept_from = group.offset_kept_from(offset.commit_timestamp)
        if kept_from is None or group.is_subscribed_to(key.topic) or self.offsets.has_pending(key):
            return None
        if offset.expire_timestamp != NO_TIMESTAMP:
            return offset.expire_timestamp
        return kept_from + self._settings.offsets_retention_minutes * 60_000

    # Replay

    def replay(self, key: WrittenKey, value: Value | None, now_ms: int, producer_id: int = -1) -> None:
        """Apply one record of the log."""
        if isinstance(key, OffsetKey):
            assert value is None or isinstance(value, CommittedOffset)
            if value is not None and key.group_id not in self.groups:
                # A simple consumer commits without ever joining: its group has no record of its own.
                self.add_group(key.group_id, now_ms)
            self.offsets.replay(key, value, producer_id)
        elif not isinstance(key, GroupKey):
            assert value is None or not isinstance(value, CommittedOffset | GroupMetadata)
            self._replay_consumer(key, value)
        elif value is None:
            if isinstance(self.groups.get(key.group_id), ClassicGroup):
                del self.groups[key.group_id]
        else:
            assert isinstance(value, GroupMetadata)
            self.add_group(key.group_id, now_ms).restore(value)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Apply a transaction's marker: its offsets count from now on, or never will."""
        self.offsets.end_transaction(producer_id, committed=committed)

    def _replay_consumer(self, key: ConsumerKey, value: ConsumerValue | None) -> None:
        group = self.groups.get(key.group_id)
        if not isinstance(group, MixedGroup):
            if value is None:
                return
            group = self.groups[key.group_id] = MixedGroup(key.group_id, self._settings)
        if isinstance(key, ConsumerGroupKey) and value is None:
            del self.groups[key.group_id]
        else:
            group.replay(key, value)

    def replay_bytes(self, key: bytes, value: bytes | None, offset: int, *, now_ms: int, producer_id: int = -1) -> bool:
        """Apply one record as it stands in the log; false for records of other protocols, which are passed over.

        Raises KafkaError(corrupt_message).
        """
        decoded = decode_key(key)
        if isinstance(decoded, UnknownKey):
            return False
        if value is None:
            self.replay(decoded, None, now_ms=now_ms)
        elif isinstance(decoded, OffsetKey):
            self.replay(decoded, decode_offset(value, offset), now_ms=now_ms, producer_id=producer_id)
        elif isinstance(decoded, GroupKey):
            self.replay(decoded, decode_group(value), now_ms=now_ms)
        elif isinstance(decoded, PartitionMetadataKey):
            group = self.groups.get(decoded.group_id)
            if isinstance(group, MixedGroup):
                group.replay_partition_metadata()
        else:
            self.replay(decoded, decode_value(decoded, value), now_ms=now_ms)
        return True
