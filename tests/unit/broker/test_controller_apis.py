"""The requests that only the controller of a cluster answers."""

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.apis.controller import ControllerApis
from headrace.broker.apis.topics import TopicApis
from headrace.cluster import topic_changes, znodes
from headrace.cluster.commands import UpdateMetadata
from headrace.cluster.failures import StoreFailures
from headrace.cluster.image import PartitionImage, TopicImage
from headrace.cluster.membership.member_admin import MemberAdmin
from headrace.cluster.metadata_cache import MetadataCache
from headrace.cluster.offices.topic_admin import ClusterTopicAdmin
from headrace.cluster.producer_id_blocks import ProducerIdBlocks
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey
from tests.unit.broker.asking import ask, raises_code
from tests.unit.cluster.clusters import broker
from tests.unit.cluster.membership.watched_store import WatchedMemory
from tests.unit.cluster.offices.office_world import OfficeWorld, office

NONE = ErrorCode.none


class Controller:
    """Broker 1, which may be the controller."""

    def __init__(self, world: OfficeWorld) -> None:
        self.world = world
        self.cache = MetadataCache()
        config, failures = BrokerConfig(), StoreFailures()
        member = MemberAdmin(world.tree, lambda: self.cache.image, config, failures)
        self.admin = ClusterTopicAdmin(world.tree, self.cache, world.candidate, member, config, failures)
        self.apis = ControllerApis(
            world.candidate,
            self.cache,
            TopicApis(self.cache, self.admin, config),
            self.admin,
            ProducerIdBlocks(world.tree, 1, failures),
        )

    async def ask(self, key: ApiKey, version: int, **fields: Any) -> Any:
        return await ask(self.apis.routes(), key, version, fields)

    async def announce(self, *topics: TopicImage) -> None:
        """Let this broker know topics, as if the controller had told it."""
        brokers = tuple(broker(broker_id) for broker_id in (1, 2, 3))
        await self.cache.apply(UpdateMetadata(1, 1, brokers, topics))

    async def create_and_announce(self) -> None:
        """Create the topic t, whose only partition has the replicas 1 and 2."""
        topic_id = await self.world.create_topic("t", (1, 2))
        await self.announce(TopicImage("t", topic_id, (PartitionImage(1, 0, (1, 2), (1, 2)),)))

    async def epoch(self, broker_id: int) -> int:
        return (await self.world.tree.get(f"/brokers/ids/{broker_id}")).stat.czxid


@pytest.fixture
async def candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Controller]:
    tree = WatchedMemory(tmp_path / "tree.db")
    world = await office(tree, monkeypatch)
    candidate = Controller(world)
    await candidate.announce()
    yield candidate
    await world.candidate.close()
    await tree.close()


@pytest.fixture
async def controller(candidate: Controller) -> Controller:
    """The broker in office."""
    await candidate.world.stand()
    return candidate


def proposal(topic_id: object, leader_epoch: int, version: int, *isr: tuple[int, int]) -> dict[str, Any]:
    members = [{"broker_id": member, "broker_epoch": epoch} for member, epoch in isr]
    partition = {
        "partition_index": 0,
        "leader_epoch": leader_epoch,
        "new_isr_with_epochs": members,
        "leader_recovery_state": 0,
        "partition_epoch": version,
    }
    return {"topics": [{"topic_id": topic_id, "partitions": [partition]}]}


async def test_other_brokers_refuse(candidate: Controller) -> None:
    routes: Any = candidate.apis.routes()
    for key in (ApiKey.CREATE_TOPICS, ApiKey.ALTER_PARTITION):
        with raises_code(ErrorCode.not_controller):
            routes[key](None, None)


async def test_a_leader_changes_its_isr_unless_a_new_member_has_restarted(controller: Controller) -> None:
    topic_id = await controller.world.create_topic("t", (2, 3))
    sender = {"broker_id": 2, "broker_epoch": await controller.epoch(2)}
    answer = await controller.ask(ApiKey.ALTER_PARTITION, 3, **sender, **proposal(topic_id, 0, 0, (2, -1)))
    (partition,) = answer.topics[0].partitions
    assert (answer.error_code, partition.error_code) == (NONE, NONE)
    assert (partition.leader_id, partition.leader_epoch, partition.isr, partition.partition_epoch) == (2, 0, (2,), 1)
    answer = await controller.ask(ApiKey.ALTER_PARTITION, 3, **sender, **proposal(topic_id, 0, 1, (2, -1), (3, 1)))
    assert answer.topics[0].partitions[0].error_code is ErrorCode.ineligible_replica
    assert (await controller.world.state("t", 0)).isr == (2,)


async def test_a_leader_before_its_restart_changes_nothing(controller: Controller) -> None:
    topic_id = await controller.world.create_topic("t", (2, 3))
    earlier = {"broker_id": 2, "broker_epoch": 1}
    with raises_code(ErrorCode.stale_broker_epoch):
        await controller.ask(ApiKey.ALTER_PARTITION, 3, **earlier, **proposal(topic_id, 0, 0, (2, -1)))


async def test_a_topic_with_an_unknown_id_has_an_error(controller: Controller) -> None:
    fields = proposal(uuid.uuid4(), 0, 0, (2, -1))
    answer = await controller.ask(
        ApiKey.ALTER_PARTITION, 3, broker_id=2, broker_epoch=await controller.epoch(2), **fields
    )
    assert answer.topics[0].partitions[0].error_code is ErrorCode.unknown_topic_id


async def test_a_broker_that_stops_hands_over_its_leaders_and_learns_which_it_keeps(controller: Controller) -> None:
    await controller.world.create_topic("t", (2, 3))
    answer = await controller.ask(ApiKey.CONTROLLED_SHUTDOWN, 3, broker_id=2, broker_epoch=await controller.epoch(2))
    assert (answer.error_code, answer.remaining_partitions) == (NONE, ())
    state = await controller.world.state("t", 0)
    assert (state.leader, state.isr) == (3, (3,))
    answer = await controller.ask(ApiKey.CONTROLLED_SHUTDOWN, 3, broker_id=3, broker_epoch=await controller.epoch(3))
    assert [(item.topic_name, item.partition_index) for item in answer.remaining_partitions] == [("t", 0)]


async def test_registered_brokers_get_different_producer_ids(controller: Controller) -> None:
    blocks = [
        await controller.ask(
            ApiKey.ALLOCATE_PRODUCER_IDS, 0, broker_id=broker_id, broker_epoch=await controller.epoch(broker_id)
        )
        for broker_id in (2, 3)
    ]
    assert [(block.producer_id_start, block.producer_id_len) for block in blocks] == [(0, 1000), (1000, 1000)]
    with raises_code(ErrorCode.broker_id_not_registered):
        await controller.ask(ApiKey.ALLOCATE_PRODUCER_IDS, 0, broker_id=9, broker_epoch=1)


async def test_a_reassignment_is_listed_until_it_is_cancelled(controller: Controller) -> None:
    await controller.world.create_topic("t", (1, 2))

    async def reassign(replicas: list[int] | None) -> Any:
        """Return the error, and the topics with reassignments in progress."""
        topics = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": replicas}]}]
        answer = await controller.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, timeout=1000, topics=topics)
        listed = await controller.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, timeout=1000, topics=None)
        return answer.responses[0].partitions[0].error_code, listed.topics

    code, (topic,) = await reassign([2, 3])
    (partition,) = topic.partitions
    assert code is NONE
    assert (partition.replicas, partition.adding_replicas, partition.removing_replicas) == ((2, 3, 1), (3,), (1,))
    assert await reassign(None) == (NONE, ())
    assert sorted(controller.world.candidate.current().machine.context.assignments["t"][0].replicas) == [1, 2]


async def test_elections_and_reassignments_look_partitions_up_in_slices(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    await controller.world.create_topic("t", (1, 2))
    term = controller.world.candidate.current()
    asked = []
    original = term.ask

    async def ask(name: str, decide: Any) -> Any:
        asked.append(name)
        return await original(name, decide)

    monkeypatch.setattr(term, "ask", ask)
    many, unknown = range(1100), ErrorCode.unknown_topic_or_partition
    wanted = [{"topic": "t", "partitions": [*many, 0, 0]}, {"topic": "a", "partitions": [0]}]
    answer = await controller.ask(ApiKey.ELECT_LEADERS, 2, election_type=0, topic_partitions=wanted, timeout=1000)
    assert [result.topic for result in answer.replica_election_results] == ["a", "t"]
    codes = {item.partition_id: item.error_code for item in answer.replica_election_results[1].partition_result}
    assert codes == {**dict.fromkeys(many, unknown), 0: ErrorCode.election_not_needed}

    topics = [{"name": "t", "partitions": [{"partition_index": index, "replicas": [2, 3]} for index in many]}]
    answer = await controller.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, timeout=1000, topics=topics)
    assert [item.error_code for item in answer.responses[0].partitions] == [NONE, *[unknown] * (len(many) - 1)]
    assert asked == ["lookup", "lookup", "election", "lookup", "lookup", "reassignment"]


async def test_many_topics_are_validated_in_a_thread(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    original = topic_changes.create_topics

    def create(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return original(*args)

    monkeypatch.setattr(topic_changes, "create_topics", create)
    topics = [
        {"name": f"t{index}", "num_partitions": -5, "replication_factor": 1, "assignments": [], "configs": []}
        for index in range(200)
    ]
    answer = await controller.ask(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout=1000, validate_only=True)
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.invalid_partitions}
    assert threading.main_thread() not in threads


async def test_a_topic_is_created_with_the_replicas_that_the_client_wants(controller: Controller) -> None:
    assignments = [{"partition_index": 0, "broker_ids": [3, 1]}]
    topics = [{"name": "t", "num_partitions": -1, "replication_factor": -1, "assignments": assignments, "configs": []}]
    answer = await controller.ask(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout=0, validate_only=False)
    # The time is over before this broker announces the leader.
    assert answer.topics[0].error_code is ErrorCode.request_timed_out
    await controller.world.rest()
    state = await controller.world.state("t", 0)
    assert (state.leader, state.isr) == (3, (3, 1))


async def test_a_topic_that_is_announced_already_is_not_waited_for(controller: Controller) -> None:
    await controller.create_and_announce()
    topics = [{"name": "t", "count": 2, "assignments": [{"broker_ids": [2, 3]}]}]
    answer = await controller.ask(ApiKey.CREATE_PARTITIONS, 3, topics=topics, timeout=0, validate_only=False)
    assert answer.results[0].error_code is ErrorCode.request_timed_out
    await controller.world.rest()
    assert (await controller.world.state("t", 1)).leader == 2


async def test_a_topic_whose_replicas_move_does_not_grow(controller: Controller) -> None:
    await controller.create_and_announce()
    moves = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [2, 3]}]}]
    await controller.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, timeout=1000, topics=moves)
    topics = [{"name": "t", "count": 2, "assignments": None}]
    answer = await controller.ask(ApiKey.CREATE_PARTITIONS, 3, topics=topics, timeout=0, validate_only=False)
    assert answer.results[0].error_code is ErrorCode.reassignment_in_progress


async def grow(controller: Controller) -> ErrorCode:
    """Let the topic `t` grow to two partitions, and return the error at once."""
    topics = [{"name": "t", "count": 2, "assignments": [{"broker_ids": [2, 3]}]}]
    answer = await controller.ask(ApiKey.CREATE_PARTITIONS, 3, topics=topics, timeout=0, validate_only=False)
    code: ErrorCode = answer.results[0].error_code
    return code


async def replicas(controller: Controller) -> dict[int, tuple[int, ...]]:
    _, assignments = znodes.decode_assignments((await controller.world.tree.get("/brokers/topics/t")).data)
    return {index: assignment.replicas for index, assignment in assignments.items()}


async def test_a_topic_does_not_lose_added_partitions_to_a_reassignment(controller: Controller) -> None:
    await controller.create_and_announce()
    term, busy = controller.world.candidate.current(), asyncio.Event()

    async def work() -> None:
        await busy.wait()

    term.queue.put("busy", work)
    moving = asyncio.create_task(term.ask("move", lambda machine: machine.reassign({TopicPartition("t", 0): (2, 1)})))
    growing = asyncio.create_task(grow(controller))
    for _ in range(20):
        await asyncio.sleep(0)
    busy.set()
    await asyncio.gather(moving, growing)
    await controller.world.rest()
    assert await replicas(controller) == {0: (2, 1), 1: (2, 3)}


async def test_a_reassignment_changes_the_number_of_replicas_only_if_allowed(controller: Controller) -> None:
    await controller.create_and_announce()
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": (1,)}]}]
    for allowed, replicas_after, error in (
        (False, (1, 2), ErrorCode.invalid_replication_factor),
        (True, (1,), ErrorCode.none),
    ):
        request = {"topics": topics, "timeout": 1000, "allow_replication_factor_change": allowed}
        answer = await controller.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, **request)
        await controller.world.rest()
        assert answer.responses[0].partitions[0].error_code is error, allowed
        assert await replicas(controller) == {0: replicas_after}, allowed


async def test_a_controller_that_was_deposed_adds_no_partitions(controller: Controller) -> None:
    await controller.create_and_announce()
    await controller.world.tree.set("/controller_epoch", b"2")
    assert await grow(controller) is ErrorCode.not_controller
    assert await replicas(controller) == {0: (1, 2)}
