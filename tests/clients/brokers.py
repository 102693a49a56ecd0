"""The broker under test: a Headrace process, or a running Apache Kafka to check the tests themselves."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import pytest

from tests.support.broker_process import BrokerProcess

EXTERNAL_BOOTSTRAP: Final = os.environ.get("HEADRACE_TEST_BOOTSTRAP")
"""HOST:PORT of a running broker to test instead; tests that kill the broker are then skipped."""
EXTERNAL_DATA: Final = os.environ.get("HEADRACE_TEST_DATA")
"""Log directory of that broker; without it, tests that read its files are skipped."""

SETTINGS: Final = {
    "num.partitions": 4,
    "group.min.session.timeout.ms": 1000,
    "group.initial.rebalance.delay.ms": 0,
}


class BrokerUnderTest(Protocol):
    @property
    def bootstrap(self) -> str: ...

    @property
    def data(self) -> Path: ...

    def start(self) -> None: ...

    def sigkill(self) -> None: ...

    def close(self) -> None: ...


class ExternalBroker:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @property
    def data(self) -> Path:
        if EXTERNAL_DATA is None:
            pytest.skip("reads the broker's files")
        return Path(EXTERNAL_DATA)

    def start(self) -> None:
        pytest.skip("restarts the broker")

    def sigkill(self) -> None:
        pytest.skip("kills the broker")

    def close(self) -> None:
        """Do nothing: the broker was not started here."""


def start_broker(directory: Path, settings: Mapping[str, object] | None = None) -> BrokerUnderTest:
    """Start a broker with its data under `directory`; `settings` are added to `SETTINGS`."""
    if EXTERNAL_BOOTSTRAP:
        return ExternalBroker(EXTERNAL_BOOTSTRAP)
    broker = BrokerProcess(directory / "data", settings={**SETTINGS, **(settings or {})})
    broker.start()
    return broker
