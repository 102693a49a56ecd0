"""Replies of the group coordinator wait until followers have the records of the request's groups."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.coordinators.durable_groups import Replicated, durable, uncommitted_in
from headrace.broker.coordinators.offsets_topic import NAME
from headrace.cluster.commands import UpdateMetadata
from headrace.cluster.image import PartitionImage, TopicImage
from headrace.cluster.metadata_cache import MetadataCache
from headrace.coordinator.runtime.partitioner import partition_for
from headrace.errors import ErrorCode
from headrace.replication.leading.isr_changes import Answer, IsrChange
from headrace.replication.leading.peers import Peers
from headrace.replication.purgatory import Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.types import PartitionState, TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.records import RecordData, build_batch
from tests.unit.broker.asking import TOPIC_ID, raises_code

NOW = 1_700_000_000_000
COUNT = 4
RECORD = build_batch([RecordData(b"k", b"v", NOW)])
NOWHERE: Any = None
STATE = PartitionState(NAME, TOPIC_ID, 0, 1, 0, (1, 2), (1, 2), is_new=False)


class Setup:
    def __init__(self, directory: Path) -> None:
        self.purgatory = Purgatory(asyncio.get_running_loop())
        self.replicas = ReplicaManager(LogDirs.open([directory], broker_id=1), lambda _: LogConfig(), self.purgatory)
        peers = Peers(1, lambda _: True, lambda: 100, lambda: 0, self)
        for index in range(COUNT):
            self.replicas.become_leader(TopicPartition(NAME, index), TOPIC_ID, 0).lead(STATE, peers)
        self.cache = MetadataCache()
        self.timeout_s = 60.0

    def submit(self, change: IsrChange, done: Callable[[Answer], None]) -> None: ...

    async def announce(self) -> None:
        image = TopicImage(NAME, TOPIC_ID, tuple(PartitionImage(1, 0, (1, 2), (1, 2)) for _ in range(COUNT)))
        await self.cache.apply(UpdateMetadata(1, 1, [], [image]))

    def ask(self, request: Any, *, commits: str | None = None) -> Any:
        """Handle a request; with `commits`, append a record for this group."""

        def handle(_: object, __: object) -> Any:
            if commits is not None:
                self.partition(commits).append_own(RECORD, NOW)
            return {"answer": 1}

        routes: Any = {ApiKey.OFFSET_COMMIT: handle}
        wrapped = durable(routes, self.purgatory, Replicated(uncommitted_in(self.replicas, self.cache), self.timeout_s))
        return wrapped[ApiKey.OFFSET_COMMIT](NOWHERE, request)

    def partition(self, group: str) -> Any:
        return self.replicas.get(NAME, partition_for(group, COUNT))

    def copy(self, group: str) -> None:
        """Fetch everything as the follower."""
        partition = self.partition(group)
        partition.fetched_by(2, partition.log_end_offset, 0, -1)


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    setup = Setup(tmp_path)
    await setup.announce()
    yield setup
    setup.purgatory.close()
    setup.replicas.close()


def of(group: str) -> Any:
    return SimpleNamespace(group_id=group)


async def test_a_reply_waits_for_the_followers(setup: Setup) -> None:
    waiting = asyncio.ensure_future(setup.ask(of("a"), commits="a"))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    setup.copy("a")
    assert await waiting == {"answer": 1}


async def test_a_reply_that_appends_nothing_waits_for_earlier_records_of_its_group(setup: Setup) -> None:
    setup.partition("a").append_own(RECORD, NOW)
    waiting = asyncio.ensure_future(setup.ask(SimpleNamespace(groups=[of("a")])))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    setup.copy("a")
    assert await waiting == {"answer": 1}


async def test_groups_in_other_partitions_are_answered_at_once(setup: Setup) -> None:
    setup.partition("a").append_own(RECORD, NOW)
    assert partition_for("a", COUNT) != partition_for("b", COUNT)
    assert setup.ask(of("b")) == {"answer": 1}
    assert setup.ask(SimpleNamespace(states_filter=[])) == {"answer": 1}


async def test_a_follower_that_does_not_come_fails_the_request(setup: Setup) -> None:
    setup.timeout_s = 0.01
    with raises_code(ErrorCode.coordinator_not_available):
        await setup.ask(of("a"), commits="a")
