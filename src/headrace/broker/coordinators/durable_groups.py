"""Delay the coordinator's replies until its records are committed."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.broker.coordinators.offsets_topic import NAME
from headrace.cluster.metadata_cache import MetadataCache
from headrace.coordinator.runtime.partitioner import partition_for
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.partition import Partition
from headrace.replication.purgatory import Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.server.context import Answer, Handler, RawReply, Reply, RequestContext
from headrace.slices import Steps, finish
from headrace.types import Request
from headrace.wire.apis import ApiKey


class Replicated(NamedTuple):
    """Makes replies wait for followers, in a cluster of several brokers."""

    uncommitted: Callable[[Request], Sequence[Partition]]
    """Returns the `__consumer_offsets` partitions of a request's groups that have uncommitted records."""
    timeout_s: float
    """`offsets.commit.timeout.ms`."""


def durable(
    routes: Mapping[ApiKey, Handler], purgatory: Purgatory, replicated: Replicated | None = None
) -> dict[ApiKey, Handler]:
    """Wrap handlers so that replies wait until all records they may depend on are committed.

    These are all records of `__consumer_offsets` that wait for a flush and, with `replicated`, records of the request's
    groups that wait for followers. Handlers raise KafkaError(coordinator_not_available) if a commit fails.
    """
    return {key: _durable(handler, purgatory, replicated) for key, handler in routes.items()}


def uncommitted_in(replicas: ReplicaManager, cache: MetadataCache) -> Callable[[Request], Sequence[Partition]]:
    """Return a function for `Replicated.uncommitted`."""

    def uncommitted(request: Request) -> list[Partition]:
        topic = cache.image.topics.get(NAME)
        if topic is None:
            return []
        numbers = {partition_for(group, len(topic.partitions)) for group in _groups_of(request)}
        found = (replicas.find(NAME, number) for number in numbers)
        return [
            partition
            for partition in found
            if partition is not None
            and partition.followers is not None
            and partition.high_watermark < partition.log_end_offset
        ]

    return uncommitted


def _groups_of(request: Any) -> list[str]:
    """Return the ids of the groups that a request names."""
    one = getattr(request, "group_id", None)
    if one is not None:
        return [one]
    for field in ("groups", "group_ids", "groups_names"):
        named = getattr(request, field, None)
        if named is not None:
            return [group if isinstance(group, str) else group.group_id for group in named]
    return []


def _durable(handler: Handler, purgatory: Purgatory, replicated: Replicated | None) -> Handler:
    def handle(context: RequestContext, request: Request) -> Answer:
        reply = handler(context, request)
        if type(reply) is not dict and isinstance(reply, Generator):
            return _once_committed(_finished(reply), request, purgatory, replicated)
        later = not isinstance(reply, RawReply) and isinstance(reply, Awaitable)
        if later or purgatory.uncommitted or (replicated is not None and replicated.uncommitted(request)):
            return _once_committed(reply, request, purgatory, replicated)
        return reply

    return handle


async def _finished(steps: Steps[Reply | Awaitable[Reply]]) -> Reply:
    reply = await finish(steps)
    return await reply if not isinstance(reply, RawReply) and isinstance(reply, Awaitable) else reply


async def _once_committed(
    reply: Reply | Awaitable[Reply], request: Request, purgatory: Purgatory, replicated: Replicated | None
) -> Reply:
    if not isinstance(reply, RawReply) and isinstance(reply, Awaitable):
        reply = await reply
    error = await purgatory.topic_committed(NAME)
    if replicated is not None and error is None:
        waits = [
            purgatory.committed(partition, partition.log_end_offset, timeout_s=replicated.timeout_s)
            for partition in replicated.uncommitted(request)
        ]
        error = next((error for error in await asyncio.gather(*waits) if error is not None), None)
    if error is not None:
        raise KafkaError(ErrorCode.coordinator_not_available, str(error)) from error
    return reply
