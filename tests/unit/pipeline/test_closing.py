"""A publisher closes whatever fails, because the job's own error must be reported."""

import threading
from collections.abc import Callable, Iterator
from unittest.mock import MagicMock

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.pipeline.engine.exactly_once import producers, publishing
from headrace.pipeline.engine.exactly_once.publishing import Batch, Record, TransactionalPublisher
from headrace.pipeline.spec.client_settings import Cluster


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    producer = MagicMock()
    monkeypatch.setattr(producers, "Producer", lambda *_, **__: producer)
    monkeypatch.setattr(publishing, "Consumer", MagicMock())
    monkeypatch.setattr(publishing, "last_published", lambda *_: -1)
    return producer


@pytest.fixture
def interrupted(producer: MagicMock) -> TransactionalPublisher:
    """A publisher with an open transaction, because a row of the batch could not be read."""

    def records() -> Iterator[Record]:
        yield Record("t", None, b"1")
        raise ZeroDivisionError

    publisher = TransactionalPublisher(
        Cluster(settings={"bootstrap.servers": "127.0.0.1:1"}, java={}, librdkafka={}), "job", 1
    )
    publisher.open("query")
    with pytest.raises(ZeroDivisionError):
        publisher.publish(Batch(number=0, query="query", positions={"t": {0: 1}}, output_ends={}), records(), 2)
    return publisher


def test_closing_aborts_an_open_transaction_once(interrupted: TransactionalPublisher, producer: MagicMock) -> None:
    interrupted.close()
    interrupted.close()
    producer.abort_transaction.assert_called_once()


def _refused(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def _unreachable(*_: object) -> None:
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


@pytest.mark.parametrize("place", ["abort", "thread"])
def test_closing_reports_a_transaction_that_stays_open(
    interrupted: TransactionalPublisher,
    producer: MagicMock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: str,
) -> None:
    if place == "abort":
        producer.abort_transaction.side_effect = _unreachable
    else:
        start: Callable[[threading.Thread], None] = _refused
        monkeypatch.setattr(threading.Thread, "start", start)
    interrupted.close()
    assert "job: cannot abort the open transaction" in caplog.text
