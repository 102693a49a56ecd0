"""Changes of the ISR reach the controller, whatever happens at the same moment."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from headrace.client.link import LinkError
from headrace.errors import ErrorCode
from headrace.replication.leading import isr_reports
from headrace.replication.leading.isr_changes import Answer, IsrChange
from headrace.replication.leading.isr_reports import IsrReports
from headrace.replication.leading.leader_state import Proposal
from headrace.types import TopicPartition

TOPIC_ID = UUID(int=3)


class Controller:
    """Accepts all changes; `failures` requests are lost first."""

    def __init__(self) -> None:
        self.failures = 0
        self.error: Exception = LinkError("lost")
        self.requests: list[list[int]] = []

    async def call(self, message: Any, version: int, reply_type: type[Any]) -> Any:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise self.error
        [topic] = message.topics
        self.requests.append([partition.partition_index for partition in topic.partitions])
        partitions = [
            SimpleNamespace(
                partition_index=partition.partition_index,
                error_code=ErrorCode.none,
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch + 1,
                isr=[state.broker_id for state in partition.new_isr_with_epochs],
            )
            for partition in topic.partitions
        ]
        return SimpleNamespace(
            error_code=ErrorCode.none, topics=[SimpleNamespace(topic_id=topic.topic_id, partitions=partitions)]
        )


class World:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.controller = Controller()
        self.reports = IsrReports(self.controller, loop=self.loop, broker_id=1, broker_epoch=lambda: 9)
        self.answers: asyncio.Queue[tuple[int, Answer]] = asyncio.Queue()

    def submit(self, partition: int) -> None:
        proposal = Proposal(4, 0, ((1, 9), (2, -1)), is_expansion=True)
        change = IsrChange(TOPIC_ID, TopicPartition("t", partition), proposal)
        self.reports.submit(change, lambda answer: self.answers.put_nowait((partition, answer)))

    async def answer(self) -> tuple[int, Answer]:
        return await asyncio.wait_for(self.answers.get(), 5)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(isr_reports, "_RETRY_S", 0.0)
    world = World()
    yield world
    await world.reports.close()


async def test_changes_that_wait_together_are_sent_together(world: World) -> None:
    world.submit(0)
    await asyncio.sleep(0)
    world.submit(1)
    world.submit(2)
    assert {(await world.answer())[0] for _ in range(3)} == {0, 1, 2}
    assert world.controller.requests == [[0], [1, 2]]


@pytest.mark.parametrize("error", [LinkError("lost"), ValueError("a malformed reply")], ids=["lost", "malformed"])
async def test_failed_requests_are_repeated_and_a_series_of_failures_is_logged_once(
    world: World, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    for failures in (3, 2):
        world.controller.failures, world.controller.error = failures, error
        world.submit(0)
        await world.answer()
    assert [str(error) in line.getMessage() for line in caplog.records] == [True, True]


async def test_a_change_right_after_the_last_answer_is_sent(world: World) -> None:
    change = IsrChange(TOPIC_ID, TopicPartition("t", 0), Proposal(4, 0, ((1, 9),), is_expansion=False))

    def answered(_: Answer) -> None:
        # After the answer, but before callbacks of the task that has sent the first change.
        world.loop.call_soon(world.submit, 1)

    world.reports.submit(change, answered)
    assert (await world.answer())[0] == 1
