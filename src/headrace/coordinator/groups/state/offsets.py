"""Committed offsets of the groups of one shard, and pending offsets of open transactions.

Only `replay` and `end_transaction` change state, in operation and on recovery.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from headrace.coordinator.groups.records.offsets import CommittedOffset, OffsetKey

GroupOffsets = Mapping[str, Mapping[int, CommittedOffset]]
"""Offsets by topic and partition."""

_NOTHING: GroupOffsets = MappingProxyType({})


class Offsets:
    """Committed offsets by group, topic and partition, and pending ones by producer."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self._pending: dict[int, dict[OffsetKey, CommittedOffset | None]] = {}
        """By producer id: offsets of open transactions (KIP-98); None for one that a later commit has superseded."""
        self._producers: dict[str, dict[OffsetKey, set[int]]] = {}
        """By group and key: the producers whose open transactions contain an offset for the key."""
        self._valid: dict[OffsetKey, set[int]] = {}
        """By key: the producers whose pending offset no later commit has superseded."""

    def of_group(self, group_id: str) -> GroupOffsets:
        return self._groups.get(group_id, _NOTHING)

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self.of_group(group_id).get(topic, {}).get(partition)

    def has_more_than(self, count: int, group_id: str) -> bool:
        """Return True if the group has more than `count` committed offsets. Costs at most `count` steps."""
        topics = self.of_group(group_id)
        return len(topics) > count or sum(map(len, topics.values())) > count

    def has_pending(self, key: OffsetKey) -> bool:
        """Return True if an open transaction would change this offset (`require_stable`, KIP-447)."""
        return key in self._producers.get(key.group_id, ())

    def has_open_transaction(self, group_id: str) -> bool:
        return group_id in self._producers

    def keys(self, group_id: str) -> Iterator[OffsetKey]:
        """Yield the keys of the group's committed and pending offsets, without duplicates."""
        committed = self.of_group(group_id)
        for topic, partitions in committed.items():
            for partition in partitions:
                yield OffsetKey(group_id, topic, partition)
        for key in self._producers.get(group_id, ()):
            if key.partition not in committed.get(key.topic, {}):
                yield key

    def group_ids(self) -> list[str]:
        """Return the groups with committed or pending offsets."""
        return list(dict.fromkeys((*self._groups, *self._producers)))

    def keys_of_topics(self, topics: frozenset[str], group_id: str) -> Iterator[OffsetKey]:
        """Yield the keys of the group's committed and pending offsets in `topics`, without duplicates."""
        committed = self.of_group(group_id)
        for topic in topics & committed.keys():
            for partition in committed[topic]:
                yield OffsetKey(group_id, topic, partition)
        for key in self._producers.get(group_id, ()):
            if key.topic in topics and key.partition not in committed.get(key.topic, {}):
                yield key

    def replay(self, key: OffsetKey, value: CommittedOffset | None, producer_id: int = -1) -> None:
        """Apply a record; `producer_id` is -1 unless its batch is transactional."""
        if value is None:
            self._remove(key)
            for producer in self._forget_producers(key):
                self._pending[producer].pop(key)
        elif producer_id >= 0:
            self._pending.setdefault(producer_id, {})[key] = value
            self._producers.setdefault(key.group_id, {}).setdefault(key, set()).add(producer_id)
            self._valid.setdefault(key, set()).add(producer_id)
        else:
            group_id, topic, partition = key
            try:
                self._groups[group_id][topic][partition] = value
            except KeyError:
                self._put(key, value)
            if self._valid:
                for producer in self._valid.pop(key, ()):
                    self._pending[producer][key] = None

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Apply a transaction marker. The last commit in the log wins, no matter when its transaction ends."""
        for key, value in self._pending.pop(producer_id, {}).items():
            if value is not None:
                self._valid[key].discard(producer_id)
                if committed:
                    self._put(key, value)
                    self._supersede(key, value.record_offset)
            producers = self._producers[key.group_id][key]
            producers.discard(producer_id)
            if not producers:
                self._forget_producers(key)

    def _supersede(self, key: OffsetKey, record_offset: int) -> None:
        """Mark offsets of open transactions that precede `record_offset` in the log as superseded."""
        for producer in list(self._valid[key]):
            rival = self._pending[producer][key]
            if rival is None or rival.record_offset < record_offset:
                self._pending[producer][key] = None
                self._valid[key].discard(producer)

    def _forget_producers(self, key: OffsetKey) -> set[int]:
        """Drop the key from the indexes of open transactions; return the producers it had."""
        self._valid.pop(key, None)
        by_key = self._producers.get(key.group_id, {})
        producers = by_key.pop(key, set())
        if not by_key:
            self._producers.pop(key.group_id, None)
        return producers

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
