"""The broker behind a scenario: Headrace as a process, or, to check the tests themselves, a running Apache Kafka."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import pytest

from tests.support.broker_process import BrokerProcess

EXTERNAL_BOOTSTRAP: Final = os.environ.get("HEADRACE_TEST_BOOTSTRAP")
"""HOST:PORT of a running broker to test instead; what kills the broker is then left out."""
EXTERNAL_DATA: Final = os.environ.get("HEADRACE_TEST_DATA")
"""Log directory of that broker; what reads its files is left out without."""

SETTINGS: Final = {
    "num.partitions": 4,
    "group.min.session.timeout.ms": 1000,
    "group.initial.rebalance.delay.ms": 0,
}


class BrokerUnderTest(Protocol):
    @property
    def bootstrap(self) -> str: ...

    @property
    def data(self) -> Path:
        """Its log directory."""

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
        """It is not ours to stop."""


def start_broker(directory: Path, settings: Mapping[str, object] | None = None) -> BrokerUnderTest:
    """A broker that answers, with its data under `directory`; `settings` come on top of `SETTINGS`."""
    if EXTERNAL_BOOTSTRAP:
        return ExternalBroker(EXTERNAL_BOOTSTRAP)
    broker = BrokerProcess(directory / "data", settings={**SETTINGS, **(settings or {})})
    broker.start()
    return broker
