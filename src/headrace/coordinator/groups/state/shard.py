"""The groups and offsets of one partition of `__consumer_offsets`.

Pure: the runtime appends, runs timers and replies. A decision is a list of (key, value) pairs; a value of None is a
tombstone. Only `replay` and `end_transaction` change offsets, and only `replay` removes groups.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from headrace.coordinator.groups.effects import (
    Effect,
    Happening,
    Timer,
)
from headrace.coordinator.groups.group import Group, OffsetToCommit
from headrace.coordinator.groups.records.classic import (
    GroupKey,
    GroupMetadata,
    decode_group,
)
from headrace.coordinator.groups.records.codec import (
    UnknownKey,
    Value,
    WrittenKey,
    WrittenRecords,
    decode_key,
    encode,
)
from headrace.coordinator.groups.records.consumer import PartitionMetadataKey, decode_value
from headrace.coordinator.groups.records.offsets import (
    NO_TIMESTAMP,
    CommittedOffset,
    OffsetKey,
    decode_offset,
)
from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.groups.state.offsets import Offsets
from headrace.coordinator.groups.state.table import GroupTable, note_of
from headrace.coordinator.groups.subscriptions import Topics
from headrace.coordinator.runtime.results import Result
from headrace.errors import ErrorCode, KafkaError
from headrace.types import new_tuple

_EXAMINED_AT_ONCE: Final = 200
"""Maximum number of offsets and groups that a check of expiry examines without a pause."""


class GroupShard:
    """The groups and offsets of one shard; times in ms."""

    def __init__(self, settings: GroupSettings, topics: Topics) -> None:
        self._settings = settings
        self.table = GroupTable(settings, topics)
        self.groups = self.table.by_id
        self.offsets = Offsets()

    encode = staticmethod(encode)

    def __len__(self) -> int:
        return len(self.groups)

    # Decisions

    def commit(self, group_id: str, offsets: Sequence[OffsetToCommit]) -> Result[list[ErrorCode]]:
        """Check the offsets. Return an error code per offset, and the records to write for the valid ones."""
        errors: list[ErrorCode] = []
        records: WrittenRecords = []
        limit = self._settings.offset_metadata_max_bytes
        for topic, partition, value in offsets:
            if len(value.metadata) > limit:
                errors.append(ErrorCode.offset_metadata_too_large)
            else:
                errors.append(ErrorCode.none)
                records.append((new_tuple(OffsetKey, (group_id, topic, partition)), value))
        return Result(errors, records)

    def delete(self, group_id: str) -> Result[None]:
        """Delete the group and its offsets.

        Raises KafkaError: group_id_not_found, non_empty_group.
        """
        group = self.table.group(group_id)
        if not group.is_empty:
            raise KafkaError(ErrorCode.non_empty_group, f"Group {group_id} has members: stop them to delete it.")
        records: WrittenRecords = [(key, None) for key in self.offsets.keys(group_id)]
        return Result(None, records + group.tombstones(), [note_of(group, Happening.DELETED)])

    def delete_offsets(self, group_id: str, partitions: Sequence[tuple[str, int]]) -> Result[list[ErrorCode]]:
        """Return an error code per partition, and tombstones for existing offsets.

        Raises KafkaError: group_id_not_found, non_empty_group (members that are not consumers, KIP-496).
        """
        group = self.table.group(group_id)
        if not group.is_empty and not group.is_consumer:
            raise KafkaError(ErrorCode.non_empty_group)
        errors = []
        records: WrittenRecords = []
        for topic, partition in partitions:
            if group.is_subscribed_to(topic):
                errors.append(ErrorCode.group_subscribed_to_topic)
                continue
            errors.append(ErrorCode.none)
            key = OffsetKey(group_id, topic, partition)
            if self.offsets.get(*key) is not None or self.offsets.has_pending(key):
                records.append((key, None))
        return Result(errors, records)

    def decide_topics_deleted(self, topics: frozenset[str], group_id: str) -> WrittenRecords:
        """Return tombstones for the group's offsets of deleted topics."""
        return [(key, None) for key in self.offsets.keys_of_topics(topics, group_id)]

    def decide_expiry(self, now_ms: int) -> Iterator[WrittenRecords]:
        """Yield tombstones for expired offsets, and for empty groups without offsets (KIP-211), in small decisions.

        The shard may change between two decisions. A decision is valid until then: write and replay it at once.
        """
        for some in self._expirable():
            decision: WrittenRecords = []
            expired = 0  # offsets of the current group in this decision
            for group_id, key in some:
                group = self.groups.get(group_id)
                if key is None:
                    if group is not None and group.is_empty and not self._keeps(group_id, expired):
                        decision += group.tombstones()
                    expired = 0
                elif group is not None and self._is_expired(group, key, now_ms):
                    decision.append((key, None))
                    expired += 1
            yield decision

    def expiring(self, until_ms: int) -> Iterator[dict[str, int]]:
        """Yield the groups with offsets that expire by `until_ms`, and their earliest expiry (ms), in small parts.

        The shard may change between two parts.
        """
        first: int | None = None
        for some in self._expirable():
            found: dict[str, int] = {}
            for group_id, key in some:
                group = self.groups.get(group_id)
                if key is None:
                    if group is not None and first is not None:
                        found[group_id] = first
                    first = None
                elif group is not None:
                    at_ms = self._expires_at(group, key)
                    if at_ms is not None and at_ms <= until_ms and (first is None or at_ms < first):
                        first = at_ms
            yield found

    def _expirable(self) -> Iterator[list[tuple[str, OffsetKey | None]]]:
        """Yield the id of every group with the keys of its offsets, then with None; in short lists.

        The shard may change meanwhile, so that a group or an offset in a later list no longer exists.
        """
        expirable = self._each_expirable()
        while some := list(islice(expirable, _EXAMINED_AT_ONCE)):
            yield some

    def _each_expirable(self) -> Iterator[tuple[str, OffsetKey | None]]:
        for group_id in list(self.groups):
            for topic in list(self.offsets.of_group(group_id)):
                for partition in list(self.offsets.of_group(group_id).get(topic, ())):
                    yield group_id, OffsetKey(group_id, topic, partition)
            yield group_id, None

    def _keeps(self, group_id: str, expired: int) -> bool:
        """Return True if the group has an open transaction, or other offsets than the `expired` ones."""
        return self.offsets.has_open_transaction(group_id) or self.offsets.has_more_than(expired, group_id)

    def _is_expired(self, group: Group, key: OffsetKey, now_ms: int) -> bool:
        expires_at = self._expires_at(group, key)
        return expires_at is not None and now_ms >= expires_at

    def _expires_at(self, group: Group, key: OffsetKey) -> int | None:
        """Return the offset's expiry (ms); None while it must be kept, and if it does not exist."""
        offset = self.offsets.get(*key)
        if offset is None:
            return None
        kept_from = group.offset_kept_from(offset.commit_timestamp)
        if kept_from is None or group.is_subscribed_to(key.topic) or self.offsets.has_pending(key):
            return None
        if offset.expire_timestamp != NO_TIMESTAMP:
            return offset.expire_timestamp
        return kept_from + self._settings.offsets_retention_minutes * 60_000

    # Events

    def loaded(self, now_ms: int) -> Iterator[tuple[str, Sequence[Effect]]]:
        """Yield the groups and the effects of loading them."""
        for group in list(self.groups.values()):
            yield group.group_id, self.table.loaded(group, now_ms)

    def unloaded(self, error: ErrorCode, now_ms: int) -> Iterator[tuple[str, Sequence[Effect]]]:
        """Yield the groups and the effects of unloading them."""
        for group in self.groups.values():
            yield group.group_id, group.unload(error, now_ms)

    def timer_fired(self, name: str, timer: Timer, now_ms: int) -> Result[None]:
        return self.table.timer_fired(name, timer, now_ms)

    def append_failed(self, name: str) -> None:
        """Handle a failed write of the group's last records."""
        if name in self.groups:
            self.groups[name].append_failed()

    # Replay

    def replay(self, key: WrittenKey, value: Value | None, now_ms: int, producer_id: int = -1) -> None:
        if isinstance(key, OffsetKey):
            assert value is None or isinstance(value, CommittedOffset)
            if value is not None and key.group_id not in self.groups:
                # A simple consumer commits without joining: its group has no record.
                self.table.add_classic(key.group_id, now_ms)
            self.offsets.replay(key, value, producer_id)
        elif isinstance(key, GroupKey):
            assert value is None or isinstance(value, GroupMetadata)
            self.table.replay_classic(key.group_id, value, now_ms)
        else:
            assert value is None or not isinstance(value, CommittedOffset | GroupMetadata)
            self.table.replay_consumer(key, value)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Apply a transaction marker: commit or drop the offsets of the transaction."""
        self.offsets.end_transaction(producer_id, committed=committed)

    def replay_bytes(self, key: bytes, value: bytes | None, offset: int, *, now_ms: int, producer_id: int = -1) -> bool:
        """Apply an encoded record. Return False for a record of an unknown type, such as a share group's.

        Raises KafkaError(corrupt_message), or UnicodeDecodeError, if the record cannot be decoded.
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
            self.table.replay_partition_metadata(decoded.group_id)
        else:
            self.replay(decoded, decode_value(decoded, value), now_ms=now_ms)
        return True
