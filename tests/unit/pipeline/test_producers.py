"""A failed publisher leaves no producer behind, because librdkafka would go on to send its requests.

It closes whatever fails, because the job's own error must be reported.
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.pipeline.engine.exactly_once import producers, publishing
from headrace.pipeline.engine.exactly_once.publishing import (
    Batch,
    FencedError,
    LedgerPublisher,
    Record,
    TransactionalPublisher,
)
from headrace.pipeline.errors import TemporaryError
from headrace.pipeline.spec.client_settings import Cluster

CLUSTER = Cluster(settings={"bootstrap.servers": "127.0.0.1:1"}, java={}, librdkafka={})
BATCH = Batch(number=0, query="q", positions={"t": {0: 1}}, output_ends={"t": {0: 0}})


class Broken:
    """A producer whose method named `call` fails."""

    call = ""
    code = KafkaError._TIMED_OUT
    calls: ClassVar[list[str]] = []
    alive: ClassVar[list["weakref.ref[Broken]"]] = []

    def __init__(self, *_: object, **__: object) -> None:
        Broken.alive.append(weakref.ref(self))

    def __getattr__(self, name: str) -> Callable[..., int]:
        def called(*_: object, **__: object) -> int:
            # The error must not keep this object alive, as it does not keep a real producer.
            Broken.calls.append(name)
            if name == Broken.call:
                raise KafkaException(KafkaError(Broken.code))
            return 0

        return called


@pytest.fixture(autouse=True)
def _broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "Producer", Broken)
    monkeypatch.setattr(publishing, "Consumer", lambda *_, **__: type("C", (), {"__getattr__": _ignored})())
    monkeypatch.setattr(publishing, "last_published", lambda *_: -1)
    monkeypatch.setattr(Broken, "alive", [])
    monkeypatch.setattr(Broken, "calls", [])


def _ignored(_: object, __: str) -> Callable[[], None]:
    return lambda: None


def living() -> int:
    return sum(ref() is not None for ref in Broken.alive)


def opened(fenced: Callable[[], Exception] | None = None) -> TransactionalPublisher:
    publisher = TransactionalPublisher(CLUSTER, "job", 1, fenced=fenced)
    publisher.open("q")
    return publisher


def records() -> Iterator[Record]:
    yield Record("t", b"key", b"1")


def test_a_producer_without_a_producer_id_does_not_outlive_its_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broken, "call", "init_transactions")
    with pytest.raises(KafkaException) as failed:
        opened()
    # The error, with its traceback, is kept as the job's failure.
    assert failed.value.args[0].code() == KafkaError._TIMED_OUT
    assert living() == 0


@pytest.mark.parametrize("call", ["produce", "send_offsets_to_transaction", "commit_transaction"])
def test_a_producer_that_has_failed_ends_with_its_query(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broken, "call", call)
    publisher = opened()
    with pytest.raises(KafkaException) as failed:
        publisher.publish(BATCH, records(), 1)
    publisher.close()
    assert failed.value.args[0].code() == KafkaError._TIMED_OUT
    assert Broken.calls[-2:] == ["abort_transaction", "purge"]
    assert living() == 0


def test_the_claim_decides_what_a_fenced_producer_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broken, "call", "commit_transaction")
    monkeypatch.setattr(Broken, "code", KafkaError._FENCED)
    with pytest.raises(TemporaryError, match="no other driver"):
        opened(lambda: TemporaryError("no other driver")).publish(BATCH, records(), 1)
    with pytest.raises(FencedError, match="another driver has started job job"):
        opened().publish(BATCH, records(), 1)


def test_records_that_were_not_delivered_are_discarded_with_their_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broken, "call", "flush")
    publisher = LedgerPublisher(CLUSTER, "job")
    publisher.open("q")
    publisher._may_be_repeated = False
    with pytest.raises(KafkaException) as failed:
        publisher.publish(BATCH, records(), 1)
    publisher.close()
    publisher.close()
    assert failed.value.args[0].code() == KafkaError._TIMED_OUT
    assert Broken.calls == ["produce", "flush", "purge"]
    assert living() == 0


@pytest.fixture
def interrupted() -> TransactionalPublisher:
    """A publisher with an open transaction, because a row of the batch could not be read."""

    def broken_records() -> Iterator[Record]:
        yield from records()
        raise ZeroDivisionError

    publisher = opened()
    with pytest.raises(ZeroDivisionError):
        publisher.publish(BATCH, broken_records(), 2)
    return publisher


def test_closing_aborts_an_open_transaction_once(interrupted: TransactionalPublisher) -> None:
    interrupted.close()
    interrupted.close()
    assert Broken.calls.count("abort_transaction") == 1


def _refused(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("place", ["abort", "thread"])
def test_closing_reports_a_transaction_that_stays_open(
    interrupted: TransactionalPublisher, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if place == "abort":
        monkeypatch.setattr(Broken, "call", "abort_transaction")
    else:
        monkeypatch.setattr(threading.Thread, "start", _refused)
    interrupted.close()
    assert "job: cannot abort the open transaction" in caplog.text


def test_a_call_that_does_not_return_is_given_up() -> None:
    never = threading.Event()
    with pytest.raises(KafkaException, match=r"librdkafka did not return within 0\.01 s"):
        producers.bounded(never.wait, 0.01)
    never.set()


def test_a_call_that_returns_in_time_succeeds_or_fails_with_its_own_error() -> None:
    producers.bounded(lambda: 7, 10)
    with pytest.raises(ZeroDivisionError):
        producers.bounded(lambda: 1 // 0, 10)
