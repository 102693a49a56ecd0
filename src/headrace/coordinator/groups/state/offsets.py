"""Committed offsets of the groups of one shard, and those of open transactions.

Only `replay` and `end_transaction` change state, in operation and on recovery.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from headrace.coordinator.groups.records.offsets import CommittedOffset, OffsetKey

GroupOffsets = Mapping[str, Mapping[int, CommittedOffset]]
"""Topic to partition to offset."""

_NOTHING: GroupOffsets = MappingProxyType({})


class Offsets:
    """Group to topic to partition to committed offset."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self._pending: dict[int, dict[OffsetKey, CommittedOffset | None]] = {}
        """Producer id of an open transaction to its offsets (KIP-98); None if a later commit has superseded one."""

    def of_group(self, group_id: str) -> GroupOffsets:
        return self._groups.get(group_id, _NOTHING)

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self.of_group(group_id).get(topic, {}).get(partition)

    def has_pending(self, key: OffsetKey) -> bool:
        """Return True if an open transaction would change this offset (`require_stable`, KIP-447)."""
        return any(key in pending for pending in self._pending.values())

    def has_open_transaction(self, group_id: str) -> bool:
        return any(key.group_id == group_id for pending in self._pending.values() for key in pending)

    def keys(self, group_id: str) -> Iterator[OffsetKey]:
        """Yield the keys of the group's committed and pending offsets, without duplicates."""
        committed = self.of_group(group_id)
        for topic, partitions in committed.items():
            for partition in partitions:
                yield OffsetKey(group_id, topic, partition)
        seen = set()
        for pending in self._pending.values():
            for key in pending:
                if key.group_id == group_id and key not in seen and key.partition not in committed.get(key.topic, {}):
                    seen.add(key)
                    yield key

    def group_ids(self) -> list[str]:
        """Return the groups with committed offsets."""
        return list(self._groups)

    def keys_of_topics(self, topics: frozenset[str], group_id: str) -> Iterator[OffsetKey]:
        """Yield the keys of the group's committed offsets in `topics`."""
        for topic, partitions in self.of_group(group_id).items():
            if topic in topics:
                for partition in partitions:
                    yield OffsetKey(group_id, topic, partition)

    def replay(self, key: OffsetKey, value: CommittedOffset | None, producer_id: int = -1) -> None:
        """Apply a record; `producer_id` is -1 unless its batch is transactional."""
        if value is None:
            self._remove(key)
            for pending in self._pending.values():
                pending.pop(key, None)
        elif producer_id >= 0:
            self._pending.setdefault(producer_id, {})[key] = value
        else:
            group_id, topic, partition = key
            try:
                self._groups[group_id][topic][partition] = value
            except KeyError:
                self._put(key, value)
            if self._pending:
                for pending in self._pending.values():
                    if key in pending:
                        pending[key] = None

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Apply a transaction marker. The commit that is last in the log wins, whenever its transaction ends."""
        pending = self._pending.pop(producer_id, {})
        if not committed:
            return
        for key, value in pending.items():
            if value is None:
                continue
            self._put(key, value)
            for other in self._pending.values():
                rival = other.get(key)
                if rival is not None and rival.record_offset < value.record_offset:
                    other[key] = None

    def _put(self, key: OffsetKey, value: CommittedOffset) -> None:
        self._groups.setdefault(key.group_id, {}).setdefault(key.topic, {})[key.partition] = value

    def _remove(self, key: OffsetKey) -> None:
        by_topic = self._groups.get(key.group_id)
        if by_topic is None or key.topic not in by_topic:
            return
        partitions = by_topic[key.topic]
        partitions.pop(key.partition, None)
        if not partitions:
            del by_topic[key.topic]
        if not by_topic:
            del self._groups[key.group_id]
