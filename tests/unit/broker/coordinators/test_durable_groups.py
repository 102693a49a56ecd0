"""Replies of the coordinator wait until its records are committed."""

import asyncio
import errno
from collections.abc import Awaitable
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest

from headrace.broker.coordinators.durable_groups import durable
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.purgatory import Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.server.context import RawReply, Reply, RequestContext
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.records import RecordData, build_batch
from tests.support.flush_disk import Disk

NOW = 1_700_000_000_000
REPLY = RawReply((b"",))


class World:
    """Two partitions of the offsets topic and one of a client, on a blocked disk."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.purgatory = Purgatory(asyncio.get_running_loop())
        self.replicas = ReplicaManager(
            LogDirs.open([directory], broker_id=0), lambda _: LogConfig(flush_messages=1), self.purgatory
        )
        names = ("__consumer_offsets", 0), ("__consumer_offsets", 1), ("t", 0)
        self.first, self.second, self.client = (
            self.replicas.become_leader(TopicPartition(*name), UUID(int=1), 0) for name in names
        )
        for item in self.first, self.second, self.client:
            disk.hold(item)
            item.append_own(build_batch([RecordData(b"k", b"v", NOW)]), NOW)

    def ask(self) -> asyncio.Future[Reply]:
        """Return the reply of a handler that has just written to both partitions of the offsets topic."""
        routes = durable({ApiKey.OFFSET_COMMIT: lambda *_: REPLY}, self.purgatory)
        reply = routes[ApiKey.OFFSET_COMMIT](cast(RequestContext, None), None)
        return asyncio.ensure_future(cast(Awaitable[Reply], reply))


@pytest.fixture
async def world(tmp_path: Path, disk: Disk) -> World:
    return World(tmp_path, disk)


@pytest.fixture(autouse=True)
async def closed(world: World, disk: Disk) -> object:
    yield
    disk.free.set()
    world.purgatory.close()
    world.replicas.close()


async def test_the_reply_waits_for_all_written_partitions(world: World) -> None:
    reply = world.ask()
    world.second.flushed_to(1)
    await asyncio.sleep(0)
    assert not reply.done()
    world.first.flushed_to(1)
    assert await reply is REPLY


async def test_a_failed_disk_becomes_a_coordinator_error(world: World, disk: Disk) -> None:
    reply = world.ask()
    disk.error = errno.EIO
    disk.free.set()
    with pytest.raises(KafkaError, match="Input/output error") as raised:
        await reply
    assert raised.value.code is ErrorCode.coordinator_not_available
