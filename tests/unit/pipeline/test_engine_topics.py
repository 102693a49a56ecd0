"""End offsets of output topics, from a client that answers as brokers do."""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.pipeline.engine import topics
from headrace.pipeline.engine.topics import Topics, UnknownTopicError
from headrace.pipeline.errors import PipelineError


@dataclass
class Admin:
    """Answers metadata requests with the errors in `metadata`, one after the other, then with partition 0."""

    metadata: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    asked: int = 0

    def list_topics(self, timeout: float) -> Any:
        assert timeout > 0
        self.asked += 1
        code = self.metadata.pop(0) if self.metadata else None
        if code == KafkaError._TRANSPORT:
            raise KafkaException(KafkaError(code, retriable=True))
        error = None if code is None else KafkaError(code, retriable=code != KafkaError.TOPIC_AUTHORIZATION_FAILED)
        return SimpleNamespace(topics={"views": SimpleNamespace(error=error, partitions=[0])})

    def list_offsets(
        self, wanted: dict[TopicPartition, object], *, isolation_level: object, request_timeout: float
    ) -> dict[TopicPartition, Any]:
        assert request_timeout > 0
        answer: Future[Any] = Future()
        if self.offsets:
            answer.set_exception(KafkaException(KafkaError(self.offsets.pop(0))))
        else:
            answer.set_result(SimpleNamespace(offset=7))
        return dict.fromkeys(wanted, answer)


def described(*existing: str, names: list[str]) -> dict[str, "Future[Any]"]:
    """Return the answers of brokers with these topics."""
    answers: dict[str, Future[Any]] = {name: Future() for name in names}
    for name, answer in answers.items():
        if name in existing:
            answer.set_result(SimpleNamespace(topic_id="AAAAAAAAAAAAAAAAAAAAAB"))
        else:
            answer.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
    return answers


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    found = Admin()
    monkeypatch.setattr(topics, "AdminClient", lambda *_, **__: found)
    at_times(monkeypatch, count())
    return found


def at_times(monkeypatch: pytest.MonkeyPatch, clock: Iterator[float]) -> None:
    """Give this module alone a clock of its own; threads of other tests may look at the real one."""
    own = SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None)
    monkeypatch.setattr("headrace.pipeline.engine.topics.time", own)


def ends() -> object:
    return Topics({}).end_offsets(["views"])


@pytest.mark.parametrize("code", [KafkaError.LEADER_NOT_AVAILABLE, KafkaError._TRANSPORT])
def test_an_election_and_a_lost_connection_are_waited_for(admin: Admin, code: int) -> None:
    admin.metadata = [code, code]
    assert ends() == {"views": {0: 7}}
    assert admin.asked == 3


def test_a_partition_without_a_leader_yet_is_waited_for(admin: Admin) -> None:
    admin.offsets = [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE]
    assert ends() == {"views": {0: 7}}


def test_an_absent_topic_can_be_told_from_other_errors(admin: Admin) -> None:
    admin.metadata = [KafkaError.UNKNOWN_TOPIC_OR_PART]
    with pytest.raises(UnknownTopicError, match="topic views does not exist"):
        ends()


def test_a_missing_permission_needs_a_person(admin: Admin) -> None:
    admin.metadata = [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(PipelineError, match=r"not authorized to read the offsets of .*: views\. Grant"):
        ends()


def test_brokers_that_stay_away_are_no_reason_to_give_up(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    admin.metadata = [KafkaError._TRANSPORT] * 10
    at_times(monkeypatch, count(step=20))
    with pytest.raises(KafkaException):
        ends()


def test_topics_that_a_broker_does_not_know_yet_are_waited_for_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [("a",), ("a", "b"), ("a", "b")]
    asked = SimpleNamespace(describe_topics=lambda _, request_timeout: described(*known.pop(0), names=["a", "b", "c"]))
    monkeypatch.setattr(topics, "AdminClient", lambda *_, **__: asked)
    at_times(monkeypatch, iter([0.0, 0.1, 4.9, 5.1]))
    assert Topics({}).awaited_ids(["a", "b", "c"]).keys() == {"a", "b"}
    assert known == []


def test_brokers_that_do_not_answer_are_an_error_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_TIMEOUT_S", 0.01)
    with pytest.raises(KafkaException) as failed:
        Topics({"bootstrap.servers": "127.0.0.1:1"}).create("views", {})
    assert failed.value.args[0].code() == KafkaError._TIMED_OUT
