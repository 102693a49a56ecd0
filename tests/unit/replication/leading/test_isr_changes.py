"""The exchange of ISR changes with the controller."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.alter_partition.v3.request import AlterPartitionRequest
from kio.schema.alter_partition.v3.response import AlterPartitionResponse, PartitionData, TopicData
from kio.static.primitive import i32Timedelta

from headrace.client.link import LinkError
from headrace.errors import ErrorCode
from headrace.replication.leading import isr_reports
from headrace.replication.leading.isr_changes import Answer, IsrChange, IsrChanges
from headrace.replication.leading.isr_reports import IsrReports
from headrace.replication.leading.leader_state import Committed, Proposal
from headrace.types import TopicPartition

T, U = UUID(int=1), UUID(int=2)
COMMITTED = Committed(4, 11, (1, 2))


def change(partition: int, topic_id: UUID = T, isr: tuple[int, ...] = (1, 2)) -> IsrChange:
    proposal = Proposal(4, 10, tuple((broker, 70 + broker) for broker in isr), is_expansion=True)
    return IsrChange(topic_id, TopicPartition(str(topic_id.int), partition), proposal)


def test_one_request_carries_all_waiting_changes() -> None:
    changes = IsrChanges()
    first, second = change(0), change(1)
    assert changes.submit(first)
    assert changes.next_request() == (first,)
    assert changes.submit(second)
    assert changes.next_request() == ()
    assert changes.answered({(T, 0): COMMITTED}) == [(first, COMMITTED)]
    assert changes.next_request() == (second,)


def test_a_partition_has_one_change_at_a_time() -> None:
    changes = IsrChanges()
    assert changes.submit(change(0))
    assert not changes.submit(change(0, isr=(1,)))
    changes.next_request()
    assert not changes.submit(change(0, isr=(1,)))
    changes.answered({(T, 0): COMMITTED})
    assert changes.submit(change(0, isr=(1,)))


def test_a_change_without_an_answer_is_sent_again() -> None:
    changes = IsrChanges()
    first, second = change(0), change(0, U)
    changes.submit(first)
    changes.submit(second)
    changes.next_request()
    assert changes.answered({(U, 0): ErrorCode.ineligible_replica}) == [(second, ErrorCode.ineligible_replica)]
    assert changes.next_request() == (first,)


class Controller:
    """Answers with the next of `answers`."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[AlterPartitionRequest] = []
        self.is_done = asyncio.Event()

    async def call(self, message: Any, version: int, reply_type: type[Any]) -> Any:
        assert (version, reply_type) == (3, AlterPartitionResponse)
        self.requests.append(message)
        await asyncio.sleep(0)
        answer = self.answers.pop(0)
        if not self.answers:
            self.is_done.set()
        if isinstance(answer, Exception):
            raise answer
        return answer


def reply(*partitions: tuple[int, Answer], error: ErrorCode = ErrorCode.none) -> AlterPartitionResponse:
    found: Any = []
    for index, answer in partitions:
        committed = answer if isinstance(answer, Committed) else Committed(0, 0, ())
        code = ErrorCode.none if isinstance(answer, Committed) else answer
        fields: Any = {
            "partition_index": index,
            "error_code": code,
            "leader_id": 1,
            "leader_epoch": committed.leader_epoch,
            "isr": committed.isr,
            "partition_epoch": committed.partition_epoch,
        }
        found.append(PartitionData(**fields))
    topics = (TopicData(topic_id=T, partitions=tuple(found)),) if found else ()
    throttle: Any = i32Timedelta.parse(timedelta())
    return AlterPartitionResponse(throttle_time=throttle, error_code=error, topics=topics)


class Setup:
    def __init__(self, *answers: Any) -> None:
        self.controller = Controller(*answers)
        self.reports = IsrReports(
            self.controller, loop=asyncio.get_running_loop(), broker_id=1, broker_epoch=lambda: 55
        )
        self.outcomes: list[tuple[int, Answer]] = []

    def submit(self, *changes: IsrChange) -> None:
        for item in changes:
            self.reports.submit(item, self.done(item.topic_partition.partition))

    def done(self, partition: int) -> Callable[[Answer], None]:
        return lambda answer: self.outcomes.append((partition, answer))

    async def finish(self) -> None:
        async with asyncio.timeout(5):
            await self.controller.is_done.wait()
        await asyncio.sleep(0.001)
        await self.reports.close()


async def test_changes_are_counted_by_their_outcome() -> None:
    setup = Setup(reply((0, COMMITTED), (3, ErrorCode.ineligible_replica), (4, COMMITTED)))
    shrink = change(4)._replace(proposal=change(4).proposal._replace(is_expansion=False))
    setup.submit(change(0), change(3), shrink)
    await setup.finish()
    assert (setup.reports.expands, setup.reports.shrinks, setup.reports.failures) == (1, 1, 1)


async def test_the_request_has_epochs_and_the_new_isr() -> None:
    setup = Setup(reply((0, COMMITTED), (3, ErrorCode.ineligible_replica)))
    setup.submit(change(0), change(3, isr=(1, 4)))
    await setup.finish()
    [request] = setup.controller.requests
    assert (request.broker_id, request.broker_epoch) == (1, 55)
    [topic] = request.topics
    assert topic.topic_id == T
    assert [
        (item.partition_index, item.leader_epoch, item.partition_epoch, item.leader_recovery_state)
        for item in topic.partitions
    ] == [(0, 4, 10, 0), (3, 4, 10, 0)]
    assert [
        [(member.broker_id, member.broker_epoch) for member in item.new_isr_with_epochs] for item in topic.partitions
    ] == [[(1, 55), (2, 72)], [(1, 55), (4, 74)]]
    assert setup.outcomes == [(0, COMMITTED), (3, ErrorCode.ineligible_replica)]


async def test_requests_without_an_answer_or_with_an_error_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isr_reports, "_RETRY_S", 0.0)
    setup = Setup(LinkError("gone"), reply(error=ErrorCode.not_controller), reply((0, COMMITTED)))
    setup.submit(change(0))
    await setup.finish()
    assert len(setup.controller.requests) == 3
    assert setup.outcomes == [(0, COMMITTED)]


async def test_a_second_change_of_a_partition_is_refused_until_the_first_is_answered() -> None:
    setup = Setup(reply((0, COMMITTED)))
    setup.submit(change(0), change(0))
    await setup.finish()
    assert set(setup.outcomes) == {(0, ErrorCode.operation_not_attempted), (0, COMMITTED)}


async def test_an_answered_partition_may_submit_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isr_reports, "_RETRY_S", 0.0)
    setup = Setup(reply((0, ErrorCode.unknown_server_error)), reply((0, COMMITTED)))
    item = change(0)

    def again(answer: Answer) -> None:
        setup.outcomes.append((0, answer))
        setup.reports.submit(item, setup.done(0))

    setup.reports.submit(item, again)
    await setup.finish()
    assert setup.outcomes == [(0, ErrorCode.unknown_server_error), (0, COMMITTED)]


async def test_changes_that_wait_together_are_sent_together() -> None:
    setup = Setup(reply((0, COMMITTED)), reply((1, COMMITTED), (2, COMMITTED)))
    setup.submit(change(0))
    await asyncio.sleep(0)
    setup.submit(change(1), change(2))
    await setup.finish()
    sent = [[item.partition_index for item in request.topics[0].partitions] for request in setup.controller.requests]
    assert sent == [[0], [1, 2]]
    assert setup.outcomes == [(0, COMMITTED), (1, COMMITTED), (2, COMMITTED)]


@pytest.mark.parametrize("error", [LinkError("lost"), ValueError("a malformed reply")], ids=["lost", "malformed"])
async def test_failed_requests_are_repeated_and_a_series_of_failures_is_logged_once(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(isr_reports, "_RETRY_S", 0.0)
    setup = Setup(error, error, error, reply((0, COMMITTED)), error, error, reply((1, COMMITTED)))
    setup.reports.submit(change(0), lambda _: setup.submit(change(1)))
    await setup.finish()
    assert setup.outcomes == [(1, COMMITTED)]
    assert [str(error) in line.getMessage() for line in caplog.records] == [True, True]


async def test_a_change_right_after_the_last_answer_is_sent() -> None:
    setup = Setup(reply((0, COMMITTED)), reply((1, COMMITTED)))

    def answered(_: Answer) -> None:
        # After the answer, but before callbacks of the task that has sent the first change.
        asyncio.get_running_loop().call_soon(setup.submit, change(1))

    setup.reports.submit(change(0), answered)
    await setup.finish()
    assert setup.outcomes == [(1, COMMITTED)]
