"""`produce` is idempotent by default, and says how to go on if the cluster does not allow it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from typer.testing import CliRunner

from headrace.cli import sending
from headrace.cli.cluster import Cluster
from headrace.cli.main import app

runner = CliRunner()

Delivered = Callable[[KafkaError | None, Message], None]


class Fake:
    """A producer whose records are delivered by `flush`, or are purged after the error `ending`."""

    def __init__(self, ending: KafkaError | None = None) -> None:
        self.config: dict[str, Any] = {}
        self._ending = ending
        self._waiting: list[Delivered] = []

    def __call__(self, config: dict[str, Any]) -> "Fake":
        self.config = config
        return self

    def produce(self, *_: object, on_delivery: Delivered, **__: object) -> None:
        self._waiting.append(on_delivery)

    def __len__(self) -> int:
        return len(self._waiting) + (self._ending is not None)

    def poll(self, _: float) -> None:
        pass

    def purge(self) -> None:
        pass

    def flush(self, _: float) -> None:
        ending, self._ending = self._ending, None
        waiting, self._waiting = self._waiting, []
        for delivered in waiting:
            delivered(None if ending is None else KafkaError(KafkaError._PURGE_QUEUE), Message(topic="t"))
        if ending is not None:
            raise KafkaException(ending)


def _produce(monkeypatch: pytest.MonkeyPatch, producer: Fake, *words: str) -> Any:
    monkeypatch.setattr(sending, "Producer", producer)
    one_topic = SimpleNamespace(bootstrap="b:1", exists=lambda _: True)
    monkeypatch.setattr(Cluster, "connect", lambda _: one_topic)
    return runner.invoke(app, ["produce", "t", *words], input="a\nb\n", env={"COLUMNS": "200"})


def test_producing_is_idempotent_if_it_waits_for_all_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    idempotent = {
        "": True,
        "--acks all": True,
        "--acks 1": False,
        "--acks 0": False,
        "--idempotent": True,
        "--no-idempotent": False,
        "--no-idempotent --acks 1": False,
    }
    found = {}
    for options in idempotent:
        producer = Fake()
        assert _produce(monkeypatch, producer, *options.split()).exit_code == 0
        found[options] = producer.config["enable.idempotence"]
    assert found == idempotent


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ],
)
def test_an_error_for_idempotent_producers_names_the_option(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = _produce(monkeypatch, Fake(KafkaError(code, "not here", True)))
    assert failed.exit_code == 1
    assert "Error: producing to 't': not here (" in failed.output
    assert "; 0 records delivered before that" in failed.output
    assert "--no-idempotent writes without idempotence" in failed.output


def test_another_error_that_ends_the_producer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = _produce(monkeypatch, Fake(KafkaError(KafkaError.UNKNOWN_PRODUCER_ID, "lost", True)))
    assert failed.exit_code == 1
    assert "Error: producing to 't': lost (UNKNOWN_PRODUCER_ID)" in failed.output
    assert "--no-idempotent" not in failed.output
