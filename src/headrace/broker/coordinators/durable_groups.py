"""Holds the coordinator's answers back until what it wrote is on the disk, where `flush.messages` asks for that."""

import asyncio
from collections.abc import Awaitable, Generator, Mapping

from headrace.broker.coordinators.offsets_topic import NAME
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.group_commit import GroupCommit
from headrace.server.context import Answer, Handler, RawReply, Reply, RequestContext
from headrace.slices import Steps, finish
from headrace.types import Request
from headrace.wire.apis import ApiKey


def durable(routes: Mapping[ApiKey, Handler], group_commit: GroupCommit) -> dict[ApiKey, Handler]:
    """The same handlers, whose answers follow the fsync of `__consumer_offsets` if one is due.

    They raise KafkaError(coordinator_not_available) where it fails: the group finds out elsewhere or later.
    """
    return {key: _durable(handler, group_commit) for key, handler in routes.items()}


def _durable(handler: Handler, group_commit: GroupCommit) -> Handler:
    def handle(context: RequestContext, request: Request) -> Answer:
        reply = handler(context, request)
        if type(reply) is not dict and isinstance(reply, Generator):
            return _once_flushed(_finished(reply), group_commit)
        later = not isinstance(reply, RawReply) and isinstance(reply, Awaitable)
        return _once_flushed(reply, group_commit) if later or group_commit.partitions else reply

    return handle


async def _finished(steps: Steps[Reply | Awaitable[Reply]]) -> Reply:
    reply = await finish(steps)
    return await reply if not isinstance(reply, RawReply) and isinstance(reply, Awaitable) else reply


async def _once_flushed(reply: Reply | Awaitable[Reply], group_commit: GroupCommit) -> Reply:
    if not isinstance(reply, RawReply) and isinstance(reply, Awaitable):
        reply = await reply
    due = [each for each in group_commit.partitions if each.topic_partition.topic == NAME]
    flushes = [group_commit.committed(each, each.log_end_offset) for each in due]
    for done in await asyncio.gather(*flushes, return_exceptions=True):
        if isinstance(done, KafkaError):
            raise KafkaError(ErrorCode.coordinator_not_available, str(done)) from done
        if done is not None:
            raise done
    return reply
