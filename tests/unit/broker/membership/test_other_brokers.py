import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace as Fields
from typing import Any

import pytest
from kio.schema.types import ProducerId

from headrace.broker.membership.transactions import OtherBrokers
from headrace.client.link import LinkError
from headrace.coordinator.transactions.machine import WriteMarkers
from headrace.coordinator.transactions.states import ProducerIdentity
from headrace.errors import ErrorCode
from headrace.types import TopicPartition
from tests.unit.broker.asking import raises_code

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
LEADERS = {A0: 1, A1: 1, B0: 2}
OWN_ID, DEAD_ID, OTHER_ID = "own", "dead", "other"
COORDINATORS = {OWN_ID: None, DEAD_ID: -1, OTHER_ID: 2}


class FakeLink:
    """A link whose peer answers with `answer`."""

    def __init__(self, broker: int, answer: Callable[[Any], Any]) -> None:
        self.broker = broker
        self.sent: list[Any] = []
        self._answer = answer

    async def call(self, message: Any, version: int, reply_type: type) -> Any:
        self.sent.append(message)
        await asyncio.sleep(0)
        return self._answer(message)

    def close(self) -> None:
        """Nothing is open."""


class World:
    """A broker whose others are brokers 1 and 2."""

    def __init__(self) -> None:
        self.links: list[FakeLink] = []
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self.is_cut = False
        self.others = OtherBrokers(
            lambda partition: LEADERS.get(partition, -1),
            lambda transactional_id: COORDINATORS[transactional_id],
            self._link_to,
            asyncio.get_running_loop(),
        )

    def _link_to(self, broker: int, api_versions: bool) -> Any:
        self.links.append(FakeLink(broker, self._verified if api_versions else self._written))
        return self.links[-1]

    def _error(self, topic: str, index: int) -> ErrorCode:
        return self.errors.get(TopicPartition(topic, index), ErrorCode.none)

    def _written(self, request: Any) -> Any:
        if self.is_cut:
            raise LinkError("cut")
        return Fields(
            markers=[
                Fields(
                    producer_id=marker.producer_id,
                    topics=[
                        Fields(
                            name=topic.name,
                            partitions=[
                                Fields(partition_index=index, error_code=self._error(topic.name, index))
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )

    def _verified(self, request: Any) -> Any:
        if self.is_cut:
            raise LinkError("cut")
        (transaction,) = request.transactions
        assert transaction.verify_only
        topics = [
            Fields(
                name=topic.name,
                results_by_partition=[
                    Fields(partition_index=index, partition_error_code=self._error(topic.name, index))
                    for index in topic.partitions
                ],
            )
            for topic in transaction.topics
        ]
        results = [Fields(transactional_id=transaction.transactional_id, topic_results=topics)]
        return Fields(error_code=ErrorCode.none, results_by_transaction=results)


def markers(producer_id: int = 5, *, commit: bool = True) -> WriteMarkers:
    return WriteMarkers(ProducerIdentity(producer_id, 0), commit, frozenset(LEADERS), 0)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.others.close()


async def test_markers_go_to_the_leaders_in_one_request_each(world: World) -> None:
    waiting = [world.others.write_marker(partition, markers(), 3) for partition in LEADERS]
    assert await asyncio.gather(*waiting) == [None, None, None]
    sent = {link.broker: link.sent for link in world.links}
    ((to_1,), (to_2,)) = (sent[1], sent[2])
    (marker,) = to_1.markers
    assert (marker.producer_id, marker.transaction_result, marker.coordinator_epoch) == (ProducerId(5), True, 3)
    assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("a", (0, 1))]
    assert [topic.name for topic in to_2.markers[0].topics] == ["b"]


async def test_a_refused_marker_has_the_leaders_error(world: World) -> None:
    world.errors[A0] = ErrorCode.invalid_producer_epoch
    error = await world.others.write_marker(A0, markers(), 3)
    assert error is not None
    assert error.code is ErrorCode.invalid_producer_epoch


async def test_a_leader_that_does_not_know_the_topic_yet_is_asked_again(world: World) -> None:
    world.errors[A0] = ErrorCode.unknown_topic_or_partition
    error = await world.others.write_marker(A0, markers(), 3)
    assert error is not None
    assert error.code is ErrorCode.not_leader_or_follower


async def test_a_marker_that_was_not_answered_is_sent_again_later(world: World) -> None:
    world.is_cut = True
    error = await world.others.write_marker(A0, markers(), 3)
    assert error is not None
    assert error.code is ErrorCode.not_leader_or_follower
    world.is_cut = False
    assert await world.others.write_marker(A0, markers(), 3) is None


async def test_a_partition_without_a_leader_has_no_marker(world: World) -> None:
    with raises_code(ErrorCode.leader_not_available):
        world.others.write_marker(TopicPartition("c", 0), markers(), 3)


async def test_the_own_coordinator_is_not_asked(world: World) -> None:
    assert world.others.verify(OWN_ID, 5, 0, [A0]) is None


async def test_another_coordinator_verifies_partitions(world: World) -> None:
    world.errors[A1] = ErrorCode.invalid_txn_state
    asked = world.others.verify(OTHER_ID, 5, 0, [A0, A1])
    assert asked is not None
    assert await asked == {A1: ErrorCode.invalid_txn_state}


async def test_without_a_coordinator_nothing_is_verified(world: World) -> None:
    asked = world.others.verify(DEAD_ID, 5, 0, [A0])
    assert asked is not None
    assert await asked == {A0: ErrorCode.coordinator_not_available}


async def test_a_coordinator_that_does_not_answer_verifies_nothing(world: World) -> None:
    world.is_cut = True
    asked = world.others.verify(OTHER_ID, 5, 0, [A0])
    assert asked is not None
    assert await asked == {A0: ErrorCode.network_exception}
