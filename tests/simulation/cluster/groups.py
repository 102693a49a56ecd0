"""Groups of the simulated cluster: coordinators of brokers, a client that commits offsets, and checks.

- A broker coordinates exactly the partitions of `__consumer_offsets` that it leads, with the logs that it leads now:
  there is one coordinator per group and leader epoch.
- An offset that was acknowledged, or seen by a client, is never lost, and never goes back.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any, Final, Protocol
from unittest.mock import patch

from headrace.client.link import LinkError
from headrace.clock import SYSTEM, Clock
from headrace.cluster.image import NO_LEADER
from headrace.cluster.topic_names import GROUP_OFFSETS
from headrace.coordinator.group_coordinator import GroupCoordinator
from headrace.coordinator.runtime.partitioner import partition_for
from headrace.coordinator.runtime.shards import Shards
from headrace.errors import ErrorCode
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey, request_encoder, response_reader
from tests.simulation.acts import replaced
from tests.simulation.cluster.broker import Broker
from tests.simulation.cluster.checks import key_of
from tests.simulation.cluster.clients import Links
from tests.simulation.cluster.loop import Process, ProcessLoop
from tests.simulation.cluster.store import Key, ViolationError

OFFSETS_PARTITIONS: Final = 2
GROUPS: Final = ("g0", "g1", "g2", "g3")
"""Two groups in each partition."""
_COMMIT_VERSION: Final = 8
_FETCH_VERSION: Final = 7
_BACKOFF_S: Final = 0.1
_TICK_S: Final = 0.002
_RECORDS_PER_STEP: Final = 4
_PAUSE_S: Final = 0.02
"""Duration of each step of loading a shard."""


def partition_of(group: str) -> TopicPartition:
    return TopicPartition(GROUP_OFFSETS, partition_for(group, OFFSETS_PARTITIONS))


class Cluster(Protocol):
    """The cluster as the client and the checks see it."""

    def leader_of(self, name: TopicPartition) -> int:
        """Return the leader according to some live broker."""

    def led_epoch(self, name: TopicPartition, broker: int) -> int | None:
        """Return the current leader epoch if the broker is the leader, and knows it."""

    def may_lack_records(self, name: TopicPartition) -> bool:
        """Return True for a partition that may have lost committed records, as after the failure of a disk."""

    def note(self, text: str) -> None: ...


class GroupClient:
    """Commits ascending offsets of several groups, one request after another, and reads them back.

    After `is_stopped`, it reads the offsets of all groups, and is done.
    """

    def __init__(self, cluster: Cluster, loop: ProcessLoop, random: Random, topic: str, pause_s: float) -> None:
        self.name = "groups"
        self.process = Process(self.name)
        self.is_stopped = False
        self.is_done = False
        self.fetched = 0
        self._cluster = cluster
        self._random = random
        self._topic = topic
        self._pause_s = pause_s
        self._links = Links(loop, "groups")
        self._sent = 0
        self._known = dict.fromkeys(GROUPS, -1)
        """The largest offset of every group that was acknowledged or seen."""

    async def run(self) -> None:
        while not self.is_stopped:
            await asyncio.sleep(self._random.expovariate(1 / self._pause_s))
            group = self._random.choice(GROUPS)
            await (self._commit(group) if self._random.random() < 0.6 else self._fetch(group))
        left = [*GROUPS]
        while left:
            await asyncio.sleep(_BACKOFF_S)
            left = [group for group in left if not await self._fetch(group)]
        self.is_done = True

    async def _commit(self, group: str) -> None:
        self._sent += 1
        offset = self._sent
        partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        fields = {"group_id": group, "member_id": "", "topics": [{"name": self._topic, "partitions": [partition]}]}
        answer = await self._ask(self._cluster.leader_of(partition_of(group)), ApiKey.OFFSET_COMMIT, fields)
        if answer is not None and answer.topics[0].partitions[0].error_code == ErrorCode.none:
            self._cluster.note(f"acknowledged offset {offset} of {group}")
            self._known[group] = offset

    async def _fetch(self, group: str) -> bool:
        """Read the offset of a group from its coordinator, and check it. Return False without a valid answer."""
        name = partition_of(group)
        if self._cluster.may_lack_records(name):
            return True
        broker = self._cluster.leader_of(name)
        if broker == NO_LEADER:
            return False
        epoch = self._cluster.led_epoch(name, broker)
        fields = {"group_id": group, "topics": [{"name": self._topic, "partition_indexes": [0]}]}
        answer = await self._ask(broker, ApiKey.OFFSET_FETCH, fields)
        if answer is None or answer.error_code != ErrorCode.none:
            return False
        if epoch is None or self._cluster.led_epoch(name, broker) != epoch:
            return False  # a former leader that does not know of its successor may not know later offsets
        if self._cluster.may_lack_records(name):
            return True
        (partition,) = answer.topics[0].partitions
        if partition.error_code != ErrorCode.none:
            return False
        offset = partition.committed_offset
        if offset < self._known[group]:
            raise ViolationError(
                f"{group}: broker {broker} answers the offset {offset} after {self._known[group]} (epoch {epoch})"
            )
        self._known[group] = offset
        self.fetched += 1
        return True

    async def _ask(self, broker: int, api_key: ApiKey, fields: dict[str, Any]) -> Any:
        """Return the answer of a broker; None without one."""
        if broker == NO_LEADER:
            return None
        version = _COMMIT_VERSION if api_key is ApiKey.OFFSET_COMMIT else _FETCH_VERSION
        body = bytearray()
        request_encoder(api_key, version)(body, fields)
        try:
            reply = await self._links.to(broker).exchange(api_key, version, body)
        except LinkError:
            return None
        return response_reader(api_key, version)(bytes(reply), 0)[0]


class CoordinatorChecks:
    """Which broker coordinates the groups of a partition, checked after every step."""

    def __init__(self) -> None:
        self._coordinators: dict[tuple[Key, int], Broker] = {}

    def check(self, broker: Broker) -> None:
        """Raise ViolationError if a broker coordinates anything but what it leads."""
        coordinator = None if broker.groups is None else broker.groups._coordinator
        if coordinator is None:
            return
        shards = coordinator._shards._led
        for index, shard in shards.items():
            led = broker.replicas.find(GROUP_OFFSETS, index)
            if led is None:
                raise ViolationError(f"broker {broker.id} coordinates {shard.name}, which it does not lead")
            if shard.log._partition is not led:  # type: ignore[attr-defined]
                raise ViolationError(f"broker {broker.id} coordinates {shard.name} with an earlier log")
            known = self._coordinators.setdefault((key_of(led), led.leader_epoch), broker)
            if known is not broker:
                raise ViolationError(
                    f"brokers {known.id} and {broker.id} (or two lives) coordinate {shard.name} under epoch"
                    f" {led.leader_epoch}"
                )
        for index in range(OFFSETS_PARTITIONS):
            if index not in shards and broker.replicas.find(GROUP_OFFSETS, index) is not None:
                raise ViolationError(f"broker {broker.id} leads {GROUP_OFFSETS}-{index}, but does not coordinate it")


class _NoHistory:
    """Replaces the history of groups, which has a thread and a database."""

    def __init__(self, *_: object, **__: object) -> None:
        """Open nothing."""

    def start(self, *_: object) -> None:
        """Record nothing."""

    observe = start

    async def stop(self) -> None:
        """Close nothing."""


class _SlowLoop:
    """The loop of the loader: its next step is late, so that requests arrive meanwhile."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_later(_PAUSE_S, callback)


def _loading_slowly(init: Any) -> Any:
    def slow(self: Any, *arguments: Any, loop: asyncio.AbstractEventLoop, **others: Any) -> None:
        init(self, *arguments, loop=_SlowLoop(loop), **others)

    return slow


@contextmanager
def groups_without_threads() -> Iterator[None]:
    """Record no history, and load shards in steps that do not depend on the speed of this machine."""
    ticks = itertools.count()
    clock = Clock(SYSTEM.wall_ms, lambda: next(ticks) * _TICK_S)
    init: Callable[..., None] = GroupCoordinator.__init__
    defaults = tuple(clock if value is SYSTEM else value for value in init.__defaults__ or ())
    with ExitStack() as patched:
        for each in (
            patch("headrace.monitoring.groups.recorder.GroupHistory", _NoHistory),
            patch("headrace.coordinator.runtime.loading._STEP", _RECORDS_PER_STEP),
            patch.object(init, "__defaults__", defaults),
            replaced(Shards, "__init__", _loading_slowly),
        ):
            patched.enter_context(each)
        yield
