"""The exchange of ISR changes with the controller: one AlterPartition request at a time carries all waiting changes.

Pure: changes and replies go in, requests and answers per partition come out (KIP-497).
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias
from uuid import UUID

from headrace.errors import ErrorCode
from headrace.replication.leading.leader_state import Committed, Proposal
from headrace.types import TopicPartition

Answer: TypeAlias = Committed | ErrorCode
"""The state that the controller has written, or its error."""


class IsrChange(NamedTuple):
    """A change to one partition's ISR."""

    topic_id: UUID
    topic_partition: TopicPartition
    proposal: Proposal


class IsrChanges:
    """The changes that the controller has not answered, at most one per partition."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, IsrChange] = {}
        self._sent: tuple[IsrChange, ...] = ()

    def submit(self, change: IsrChange) -> bool:
        """Queue a change. Return False if an earlier change of the partition has no answer yet: try again later."""
        return self._waiting.setdefault(change.topic_partition, change) is change

    def next_request(self) -> tuple[IsrChange, ...]:
        """Return the changes of the next request; none if a request is in flight or nothing waits."""
        if self._sent:
            return ()
        self._sent = tuple(self._waiting.values())
        return self._sent

    def answered(self, answers: Mapping[tuple[UUID, int], Answer]) -> list[tuple[IsrChange, Answer]]:
        """End the request in flight, and return its answered changes; others are sent again."""
        sent, self._sent = self._sent, ()
        answered = []
        for change in sent:
            answer = answers.get((change.topic_id, change.topic_partition.partition))
            if answer is not None:
                del self._waiting[change.topic_partition]
                answered.append((change, answer))
        return answered

    def failed(self) -> None:
        """End the request in flight, which got no answer or a top-level error: its changes are sent again."""
        self._sent = ()
