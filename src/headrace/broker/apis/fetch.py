"""Fetch, the hot path for reads. A reply consists of handwritten headers and regions of log files.

A fetch that finds less than `min_bytes` waits for its partitions to grow, at most `max_wait`. Layout of the reply:
https://kafka.apache.org/protocol#The_Messages_Fetch
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from random import Random
from typing import Any, Final
from uuid import UUID

from headrace.broker.apis.fetch_answers import AT_ONCE, FLEXIBLE, OFTEN
from headrace.broker.apis.fetch_reads import FetchReads, follower_of
from headrace.broker.apis.fetch_waits import Fetch
from headrace.broker.current_leader import LeaderOf
from headrace.broker.fetch_session import FULL_EPOCH, FetchSession, FetchSessions, PartitionKey
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.throttle import ReplicationThrottle
from headrace.server.context import Answer, Handler, Reply, RequestContext
from headrace.server.large_requests import WaitingPartitions
from headrace.server.loop.turns import Turns
from headrace.slices import Steps, chunks
from headrace.wire.apis import ApiKey

_TOPIC_IDS: Final = 13


class FetchApi(FetchReads):
    """Handles Fetch, with its sessions and waiting fetches."""

    def __init__(
        self,
        replicas: ReplicaManager,
        topic_name: Callable[[UUID | None], str | None],
        *,
        loop: asyncio.AbstractEventLoop,
        max_sessions: int,
        max_bytes: int,
        turns: Turns | None = None,
        throttle: ReplicationThrottle | None = None,
        rack_of: Callable[[int], str | None] | None = None,
        leader_of: LeaderOf | None = None,
    ) -> None:
        super().__init__(replicas, topic_name, throttle=throttle, rack_of=rack_of, leader_of=leader_of)
        self.loop = loop
        self.turns = turns or Turns(loop.call_soon)
        self._max_bytes = max_bytes
        self._sessions = FetchSessions(max_sessions, Random())
        self.waiting = WaitingPartitions()
        self.ending = asyncio.Lock()
        """Serializes the replies to large fetches after their wait."""

    def routes(self) -> dict[ApiKey, Handler]:
        return {ApiKey.FETCH: self.fetch}

    def fetch(self, context: RequestContext, request: Any) -> Answer:
        """Reply at once if there is enough data or an error, or if `max_wait` is 0; otherwise wait."""
        version = context.api_version
        session, is_incremental = self._begin(request, version)
        named = len(session.ready if is_incremental else session.partitions)
        for topic in request.topics:
            named += len(topic.partitions)
        if is_incremental:
            for topic in request.forgotten_topics_data:
                named += len(topic.partitions)
        if named > AT_ONCE:
            return self._fetch_many(context, session, request, is_incremental=is_incremental)
        for topic in request.topics:
            _put(session, topic, topic.partitions, version)
        if is_incremental:
            session.forget(_forgotten(request, version))
        if session.session_id:
            self._sessions.changed(session)
        fetch = Fetch(self, session, request, version, context.client, is_incremental=is_incremental)
        fetch.collect()
        if fetch.is_satisfied() or not fetch.may_wait():
            return fetch.reply()
        return fetch.wait()

    def _fetch_many(
        self, context: RequestContext, session: FetchSession, request: Any, *, is_incremental: bool
    ) -> Steps[Reply | Awaitable[Reply]]:
        version = context.api_version
        for topic in request.topics:
            for start in range(0, len(topic.partitions), OFTEN):
                _put(session, topic, topic.partitions[start : start + OFTEN], version)
                self._sessions.changed(session)
                yield
        if is_incremental:
            for keys in chunks(_forgotten(request, version), OFTEN):
                session.forget(keys)
                yield
        self._sessions.changed(session)
        fetch = Fetch(self, session, request, version, context.client, is_incremental=is_incremental)
        return (yield from fetch.in_steps())

    def _begin(self, request: Any, version: int) -> tuple[FetchSession, bool]:
        session_id = getattr(request, "session_id", 0)
        epoch = getattr(request, "session_epoch", FULL_EPOCH)
        now_ms = time.monotonic_ns() // 1_000_000
        session, is_incremental = self._sessions.begin(
            session_id,
            epoch,
            uses_topic_ids=version >= _TOPIC_IDS,
            now_ms=now_ms,
            is_follower=follower_of(request, version) is not None,
        )
        isolation = getattr(request, "isolation_level", 0)
        if isolation != session.isolation or now_ms >= session.read_all_at_ms:
            session.read_all(isolation, now_ms)
        return session, is_incremental

    @property
    def max_bytes(self) -> int:
        return self._max_bytes


def _put(session: FetchSession, topic: Any, partitions: Iterable[Any], version: int) -> None:
    name = topic.topic_id if version >= _TOPIC_IDS else topic.topic
    if name is None:
        name = UUID(int=0)
    for partition in partitions:
        wanted = session.want(name, partition.partition)
        wanted.fetch_offset = partition.fetch_offset
        wanted.max_bytes = partition.partition_max_bytes
        if version >= 5:
            wanted.log_start_offset = partition.log_start_offset
        if version >= 9:
            wanted.current_leader_epoch = partition.current_leader_epoch
            if version >= FLEXIBLE:
                wanted.last_fetched_epoch = partition.last_fetched_epoch


def _forgotten(request: Any, version: int) -> Iterator[PartitionKey]:
    for topic in request.forgotten_topics_data:
        name = topic.topic if version < _TOPIC_IDS else 0 if topic.topic_id is None else topic.topic_id.int
        for index in topic.partitions:
            yield name, index
