"""OffsetCommit, OffsetFetch and OffsetDelete: names, topic ids and existence here, the offsets in the coordinator."""

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

from headrace.broker.context import Handler, RequestContext
from headrace.coordinator.records import CommittedOffset
from headrace.coordinator.runtime import GroupCoordinator
from headrace.coordinator.shard import OffsetToCommit
from headrace.errors import ErrorCode, KafkaError
from headrace.types import Request
from headrace.wire.apis import ApiKey
from headrace.wire.encoder import Fields

_TOPIC_IDS_SINCE = 10
_EPOCHS_SINCE = 9
_MILLISECOND = timedelta(milliseconds=1)


class Topics(Protocol):
    """What topics there are."""

    def partition_count(self, topic: str) -> int | None:
        """Partitions of the topic; None where it does not exist."""

    def topic_id(self, topic: str) -> UUID | None: ...

    def topic_name(self, topic_id: UUID) -> str | None: ...


class OffsetApis:
    """Commits, fetches and deletes offsets of groups."""

    def __init__(self, coordinator: GroupCoordinator, topics: Topics) -> None:
        self._coordinator = coordinator
        self._topics = topics

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.OFFSET_COMMIT: self.commit,
            ApiKey.OFFSET_FETCH: self.fetch,
            ApiKey.OFFSET_DELETE: self.delete,
        }

    def commit(self, context: RequestContext, request: Request) -> Fields:
        """Commits what names an existing partition; the answer has an error code per partition."""
        by_id = context.api_version >= _TOPIC_IDS_SINCE
        now_ms = time.time_ns() // 1_000_000
        expire_timestamp = _expire_timestamp(request, now_ms)
        answers: list[dict[str, Any]] = []
        to_commit: list[OffsetToCommit] = []
        accepted: list[dict[str, Any]] = []
        for topic in request.topics:
            if not topic.partitions:
                continue  # as Kafka: what was not said is not answered
            name, unknown, partition_count = self._resolve(topic, by_id=by_id)
            topic_id = self._topics.topic_id(name) if partition_count else None
            partitions = []
            for partition in topic.partitions:
                index = partition.partition_index
                answer = {"partition_index": index, "error_code": unknown}
                partitions.append(answer)
                if 0 <= index < partition_count:
                    accepted.append(answer)
                    offset = CommittedOffset(
                        partition.committed_offset,
                        getattr(partition, "committed_leader_epoch", -1),
                        partition.committed_metadata or "",
                        now_ms,
                        expire_timestamp,
                        b"" if topic_id is None else topic_id.bytes,
                    )
                    to_commit.append((name, index, offset))
            answers.append({**_name_of(topic, by_id=by_id), "partitions": partitions})
        if to_commit:
            for answer, error in zip(accepted, self._commit(context, request, to_commit), strict=True):
                answer["error_code"] = error
        return {"topics": answers}

    def _commit(self, context: RequestContext, request: Request, to_commit: list[OffsetToCommit]) -> list[ErrorCode]:
        try:
            return self._coordinator.commit_offsets(
                request.group_id,
                request.member_id,
                getattr(request, "group_instance_id", None),
                request.generation_id_or_member_epoch,
                to_commit,
                knows_epochs=context.api_version >= _EPOCHS_SINCE,
            )
        except KafkaError as error:
            code = error.code
            if code is ErrorCode.group_id_not_found and context.api_version < _EPOCHS_SINCE:
                code = ErrorCode.illegal_generation
            return [code] * len(to_commit)

    def fetch(self, context: RequestContext, request: Request) -> Fields:
        """Committed offsets of one group, or since version 8 of several (KIP-709); no topics means all."""
        require_stable = getattr(request, "require_stable", False)
        if context.api_version >= 8:
            return {"groups": [self._fetch_group(context, group, require_stable) for group in request.groups]}
        answer = self._fetch_group(context, request, require_stable)
        if context.api_version < 2 and answer["error_code"] is not ErrorCode.none:
            # Version 1 has no error code of its own.
            answer["topics"] = [
                {
                    "name": topic.name,
                    "partitions": [_no_offset(index, answer["error_code"]) for index in topic.partition_indexes],
                }
                for topic in request.topics
            ]
        return answer

    def _fetch_group(self, context: RequestContext, request: Request, require_stable: bool) -> dict[str, Any]:
        group_id = request.group_id
        by_id = context.api_version >= _TOPIC_IDS_SINCE
        answer: dict[str, Any] = {"group_id": group_id, "error_code": ErrorCode.none, "topics": []}
        try:
            self._coordinator.check_offset_fetch(
                group_id, getattr(request, "member_id", None), getattr(request, "member_epoch", -1)
            )
            committed = self._coordinator.committed_offsets(group_id)
        except KafkaError as error:
            answer["error_code"] = error.code
            return answer
        if request.topics is None:
            # By id, topics that are gone have no name in the answer: they are left out.
            wanted: list[tuple[dict[str, Any], str | None, Sequence[int]]] = [
                ({"name": name, "topic_id": topic_id}, name, list(partitions))
                for name, partitions in committed.items()
                if (topic_id := self._topics.topic_id(name)) is not None or not by_id
            ]
        else:
            wanted = [
                (_name_of(topic, by_id=by_id), self._resolve(topic, by_id=by_id)[0], topic.partition_indexes)
                for topic in request.topics
            ]
        answer["topics"] = [
            {
                **label,
                "partitions": [
                    self._fetch_partition(
                        group_id, name, index, label.get("topic_id") if by_id else None, require_stable
                    )
                    for index in partitions
                ],
            }
            for label, name, partitions in wanted
        ]
        return answer

    def _fetch_partition(
        self, group_id: str, topic: str | None, index: int, topic_id: UUID | None, require_stable: bool
    ) -> Fields:
        if topic is None:
            return _no_offset(index, ErrorCode.unknown_topic_id)
        if require_stable and self._coordinator.is_unstable(group_id, topic, index):
            return _no_offset(index, ErrorCode.unstable_offset_commit)
        offset = self._coordinator.committed_offsets(group_id).get(topic, {}).get(index)
        if offset is None or (topic_id is not None and offset.topic_id not in (b"", topic_id.bytes)):
            # Never committed, or committed to an earlier topic of the same name.
            return _no_offset(index)
        return _offset(index, offset)

    def delete(self, _: RequestContext, request: Request) -> Fields:
        """Deletes offsets that no member of the group is using (KIP-496)."""
        answers: list[dict[str, Any]] = []
        accepted: list[dict[str, Any]] = []
        to_delete: list[tuple[str, int]] = []
        for topic in request.topics:
            name, unknown, partition_count = self._resolve(topic, by_id=False)
            partitions = []
            for partition in topic.partitions:
                answer = {"partition_index": partition.partition_index, "error_code": unknown}
                partitions.append(answer)
                if 0 <= partition.partition_index < partition_count:
                    accepted.append(answer)
                    to_delete.append((name, partition.partition_index))
            answers.append({"name": name, "partitions": partitions})
        try:
            errors = self._coordinator.delete_offsets(request.group_id, to_delete)
        except KafkaError as error:
            return {"error_code": error.code, "topics": []}
        for answer, code in zip(accepted, errors, strict=True):
            answer["error_code"] = code
        return {"error_code": ErrorCode.none, "topics": answers}

    def _resolve(self, topic: Any, *, by_id: bool) -> tuple[Any, ErrorCode, int]:
        """Name (None for an unknown id), error for partitions that do not exist, and the number of those that do.

        The place to refuse topics that the principal may not read.
        """
        if by_id:
            name = None if topic.topic_id is None else self._topics.topic_name(topic.topic_id)
            if name is None:
                return None, ErrorCode.unknown_topic_id, 0
        else:
            name = topic.name
        return name, ErrorCode.unknown_topic_or_partition, self._topics.partition_count(name) or 0


def _name_of(topic: Any, *, by_id: bool) -> dict[str, Any]:
    return {"topic_id": topic.topic_id} if by_id else {"name": topic.name}


def _expire_timestamp(request: Request, now_ms: int) -> int:
    """When the offsets expire, in ms: only versions 2 to 4 can say so; -1 for the broker's retention."""
    retention = getattr(request, "retention_time", None)
    if retention is None or retention < timedelta(0):
        return -1
    return now_ms + int(retention // _MILLISECOND)


def _offset(index: int, committed: CommittedOffset) -> Fields:
    return {
        "partition_index": index,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": ErrorCode.none,
    }


def _no_offset(index: int, error: ErrorCode = ErrorCode.none) -> Fields:
    return {
        "partition_index": index,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": error,
    }
