"""OffsetCommit, OffsetFetch and OffsetDelete. This module resolves and checks topics; the coordinator keeps offsets."""

import struct
from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

from headrace.clock import now_ms
from headrace.coordinator.group_coordinator import GroupCoordinator
from headrace.coordinator.groups.group import OffsetToCommit
from headrace.coordinator.groups.records.offsets import (
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    CommittedOffset,
)
from headrace.coordinator.groups.subscriptions import Topics
from headrace.errors import ErrorCode, KafkaError
from headrace.server.context import Handler, RawReply, RequestContext
from headrace.slices import Steps, chunks, in_slices
from headrace.types import Request, new_tuple
from headrace.wire.apis import ApiKey
from headrace.wire.encoder import Fields, put_count, put_string
from headrace.wire.items import made_of

_PER_SLICE = 256
"""Entries of a request to handle without a pause."""
_MAX_COMMIT = 15_000
"""Maximum offsets in one commit: about as many as fit into a batch of 1 MB, Kafka's limit in `__consumer_offsets`."""
_COMMITTED_AT_ONCE = 1000
_DELETED_AT_ONCE = 1000
_TOPIC_IDS_SINCE = 10
_EPOCHS_SINCE = 9
_INSTANCES_SINCE = 7
_LAST_RETENTION = 4
_THROTTLE_SINCE = 3
_LEADER_EPOCHS_SINCE = 6
_FLEXIBLE_COMMIT = 8
_NOT_THROTTLED = bytes(4)
_UNKNOWN = ErrorCode.unknown_topic_or_partition
_UNKNOWN_ID = ErrorCode.unknown_topic_id
_NO_TOPIC = (b"", 0)
_COMMITTED = struct.Struct(">ih")
_COMMITTED_FLEXIBLE = struct.Struct(">ihx")
"""A partition, its error code, and an empty tag section."""
_ZERO = timedelta(0)
_MILLISECOND = timedelta(milliseconds=1)


class OffsetApis:
    """Handles OffsetCommit, OffsetFetch and OffsetDelete."""

    def __init__(self, coordinator: GroupCoordinator, topics: Topics) -> None:
        self._coordinator = coordinator
        self._topics = topics

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.OFFSET_COMMIT: self.commit,
            ApiKey.OFFSET_FETCH: self.fetch,
            ApiKey.OFFSET_DELETE: self.delete,
        }

    def commit(self, context: RequestContext, request: Request) -> RawReply | Steps[RawReply]:
        """Commit offsets of existing partitions; the reply has an error code per partition."""
        return in_slices(self._commit(context, request))

    def _commit(self, context: RequestContext, request: Request) -> Steps[RawReply]:
        version = context.api_version
        commit_timestamp = now_ms()
        expire_timestamp = _expire_timestamp(request, commit_timestamp) if version <= _LAST_RETENTION else NO_TIMESTAMP
        answers: list[tuple[Any, list[ErrorCode]]] = []
        to_commit: list[OffsetToCommit] = []
        places: list[tuple[list[ErrorCode], int]] = []
        for topic in request.topics:
            partitions = topic.partitions
            if not partitions:
                continue  # as in Kafka, omitted in the reply
            if version >= _TOPIC_IDS_SINCE:
                name = (topic.topic_id and self._topics.name_of(topic.topic_id.bytes)) or ""
                unknown = _UNKNOWN if name else _UNKNOWN_ID
            else:
                name, unknown = topic.name, _UNKNOWN
            topic_id, partition_count = self._topics.describe(name) or _NO_TOPIC
            errors = [unknown] * len(partitions)
            answers.append((topic, errors))
            if len(answers) % _PER_SLICE == 0:
                yield
            for place, partition in enumerate(partitions):
                if place % _PER_SLICE == _PER_SLICE - 1:
                    yield
                index = partition.partition_index
                if 0 <= index < partition_count:
                    places.append((errors, place))
                    offset = (
                        partition.committed_offset,
                        partition.committed_leader_epoch if version >= _LEADER_EPOCHS_SINCE else NO_LEADER_EPOCH,
                        partition.committed_metadata or "",
                        commit_timestamp,
                        expire_timestamp,
                        topic_id,
                        -1,
                    )
                    to_commit.append((name, index, new_tuple(CommittedOffset, offset)))
        if to_commit:
            if len(to_commit) <= _COMMITTED_AT_ONCE:
                committed = self._commit_some(context, request, to_commit)
            elif len(to_commit) > _MAX_COMMIT:
                committed = [ErrorCode.invalid_commit_offset_size] * len(to_commit)
            else:
                # Check and write in parts, with pauses for other requests.
                committed = []
                for some in chunks(to_commit, _COMMITTED_AT_ONCE):
                    committed += self._commit_some(context, request, some)
                    yield
            for (errors, place), code in zip(places, committed, strict=True):
                errors[place] = code
        return RawReply(((yield from _commit_answer(answers, version)),))

    def _commit_some(self, context: RequestContext, request: Request, offsets: list[OffsetToCommit]) -> list[ErrorCode]:
        version = context.api_version
        try:
            return self._coordinator.commit_offsets(
                request.group_id,
                request.member_id,
                request.group_instance_id if version >= _INSTANCES_SINCE else None,
                request.generation_id_or_member_epoch,
                offsets,
                knows_epochs=version >= _EPOCHS_SINCE,
            )
        except KafkaError as error:
            code = error.code
            if code is ErrorCode.group_id_not_found and version < _EPOCHS_SINCE:
                code = ErrorCode.illegal_generation
            return [code] * len(offsets)

    def fetch(self, context: RequestContext, request: Request) -> Fields:
        """Return the committed offsets of a group, or of several since version 8 (KIP-709); null topics mean all."""
        require_stable = getattr(request, "require_stable", False)
        if context.api_version >= 8:
            return {"groups": made_of(request.groups, lambda group: self._fetch_group(context, group, require_stable))}
        answer = self._fetch_group(context, request, require_stable)
        if context.api_version < 2 and answer["error_code"] is not ErrorCode.none:
            # Before version 2, the reply has no error code for the group.
            answer["topics"] = [
                {
                    "name": topic.name,
                    "partitions": made_of(
                        topic.partition_indexes, lambda index: _no_offset(index, answer["error_code"])
                    ),
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
            # Versions with topic ids omit deleted topics, because their ids are unknown.
            wanted: list[tuple[dict[str, Any], str | None, Sequence[int]]] = [
                ({"name": name, "topic_id": found and UUID(bytes=found[0])}, name, list(partitions))
                for name, partitions in committed.items()
                if (found := self._topics.describe(name)) is not None or not by_id
            ]
        else:
            wanted = [
                (_name_of(topic, by_id=by_id), self._resolve(topic, by_id=by_id)[0], topic.partition_indexes)
                for topic in request.topics
            ]

        def fetched(topic: tuple[dict[str, Any], str | None, Sequence[int]]) -> Fields:
            label, name, partitions = topic
            topic_id = label.get("topic_id") if by_id else None

            def partition(index: int) -> Fields:
                return self._fetch_partition(group_id, name, index, topic_id, require_stable)

            return {**label, "partitions": made_of(partitions, partition)}

        answer["topics"] = made_of(wanted, fetched)
        return answer

    def _fetch_partition(
        self, group_id: str, topic: str | None, index: int, topic_id: UUID | None, require_stable: bool
    ) -> Fields:
        if topic is None:
            return _no_offset(index, ErrorCode.unknown_topic_id)
        try:
            if require_stable and self._coordinator.is_unstable(group_id, topic, index):
                return _no_offset(index, ErrorCode.unstable_offset_commit)
            offset = self._coordinator.committed_offsets(group_id).get(topic, {}).get(index)
        except KafkaError as error:
            return _no_offset(index, error.code)  # the coordinator changed while a long reply was encoded
        if offset is None or (topic_id is not None and offset.topic_id not in (b"", topic_id.bytes)):
            # Never committed, or committed to an earlier topic of the same name.
            return _no_offset(index)
        return _offset(index, offset)

    def delete(self, _: RequestContext, request: Request) -> Fields | Steps[Fields]:
        """Delete offsets of topics to which no member subscribes (KIP-496)."""
        return in_slices(self._delete(request))

    def _delete(self, request: Request) -> Steps[Fields]:
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
                if len(partitions) % _PER_SLICE == 0:
                    yield
            answers.append({"name": name, "partitions": partitions})
            yield
        errors: list[ErrorCode] = []
        try:
            # Check the group even if there is nothing to delete.
            for some in chunks(to_delete, _DELETED_AT_ONCE) if to_delete else ([],):
                errors += self._coordinator.delete_offsets(request.group_id, some)
                yield
        except KafkaError as error:
            return {"error_code": error.code, "topics": []}
        for answer, code in zip(accepted, errors, strict=True):
            answer["error_code"] = code
        return {"error_code": ErrorCode.none, "topics": answers}

    def _resolve(self, topic: Any, *, by_id: bool) -> tuple[Any, ErrorCode, int]:
        """Return the name (None for an unknown id), the error for missing partitions, and the partition count."""
        if by_id:
            name = None if topic.topic_id is None else self._topics.name_of(topic.topic_id.bytes)
            if name is None:
                return None, ErrorCode.unknown_topic_id, 0
        else:
            name = topic.name
        _, partition_count = self._topics.describe(name) or _NO_TOPIC
        return name, ErrorCode.unknown_topic_or_partition, partition_count


def _commit_answer(topics: list[tuple[Any, list[ErrorCode]]], version: int) -> Steps[bytearray]:
    """Encode the reply by hand, because commits are frequent
    (layout: https://kafka.apache.org/protocol#The_Messages_OffsetCommit).
    """
    flexible = version >= _FLEXIBLE_COMMIT
    pack = (_COMMITTED_FLEXIBLE if flexible else _COMMITTED).pack
    out = bytearray(_answer_head(len(topics), version))
    for place, (topic, errors) in enumerate(topics):
        if place % _PER_SLICE == _PER_SLICE - 1:
            yield
        out += _topic_head(topic.topic_id if version >= _TOPIC_IDS_SINCE else topic.name, len(errors), version)
        for partition, error in zip(topic.partitions, errors, strict=True):
            out += pack(partition.partition_index, error)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    return out


@lru_cache(maxsize=256)
def _answer_head(topics: int, version: int) -> bytes:
    out = bytearray(_NOT_THROTTLED if version >= _THROTTLE_SINCE else b"")
    put_count(out, topics, flexible=version >= _FLEXIBLE_COMMIT)
    return bytes(out)


@lru_cache(maxsize=256)
def _topic_head(topic: UUID | str | None, partitions: int, version: int) -> bytes:
    out = bytearray()
    if isinstance(topic, str):
        put_string(out, topic, flexible=version >= _FLEXIBLE_COMMIT)
    else:
        out += bytes(16) if topic is None else topic.bytes
    put_count(out, partitions, flexible=version >= _FLEXIBLE_COMMIT)
    return bytes(out)


def _name_of(topic: Any, *, by_id: bool) -> dict[str, Any]:
    return {"topic_id": topic.topic_id} if by_id else {"name": topic.name}


def _expire_timestamp(request: Request, now_ms: int) -> int:
    """Return the expiry (ms) of offsets in versions 2 to 4; -1 for the broker's retention."""
    retention: timedelta = request.retention_time
    return now_ms + retention // _MILLISECOND if retention >= _ZERO else NO_TIMESTAMP


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
