"""Answers of the coordinator that follow the fsync of what it wrote."""

import asyncio
import gc
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import cast

import pytest

from headrace.broker.coordinators.durable_groups import durable
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.group_commit import GroupCommit
from headrace.server.context import RawReply, Reply, RequestContext
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey

REPLY = RawReply((b"",))


class Commits:
    """Two partitions of the offsets topic are being flushed, and one of clients."""

    def __init__(self) -> None:
        names = ("__consumer_offsets", 0), ("__consumer_offsets", 1), ("t", 0)
        self.partitions = [SimpleNamespace(topic_partition=TopicPartition(*each), log_end_offset=1) for each in names]
        self.waiting: list[asyncio.Future[None]] = []

    def committed(self, _: object, __: int) -> asyncio.Future[None]:
        self.waiting.append(asyncio.get_running_loop().create_future())
        return self.waiting[-1]


def answer(commits: Commits) -> asyncio.Future[Reply]:
    routes = durable({ApiKey.OFFSET_COMMIT: lambda *_: REPLY}, cast(GroupCommit, commits))
    reply = routes[ApiKey.OFFSET_COMMIT](cast(RequestContext, None), None)
    return asyncio.ensure_future(cast(Awaitable[Reply], reply))


async def test_every_flush_that_is_due_is_waited_for() -> None:
    commits = Commits()
    reply = answer(commits)
    await asyncio.sleep(0)
    first, second = commits.waiting
    second.set_result(None)
    await asyncio.sleep(0)
    assert not reply.done()
    first.set_result(None)
    assert await reply is REPLY


async def test_a_disk_that_fails_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    commits = Commits()
    reply = answer(commits)
    await asyncio.sleep(0)
    for each in commits.waiting:
        each.set_exception(KafkaError(ErrorCode.kafka_storage_error, "the disk"))
    with pytest.raises(KafkaError, match="the disk") as raised:
        await reply
    assert raised.value.code is ErrorCode.coordinator_not_available
    commits.waiting.clear()
    del each, raised, reply
    gc.collect()
    await asyncio.sleep(0)
    assert "never retrieved" not in caplog.text
