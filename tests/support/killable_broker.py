"""A broker that a test kills, pauses and restarts: Headrace, or Apache Kafka to check the test itself."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol, Self

from tests.adoption.kafka import Kraft
from tests.support.broker_process import BrokerProcess

KIND: Final = os.environ.get("HEADRACE_TEST_BROKER", "headrace")
"""`headrace` or `kafka`."""


class KillableBroker(Protocol):
    @property
    def bootstrap(self) -> str:
        """HOST:PORT, the same after every start."""

    def start(self) -> None: ...

    def sigkill(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def log(self) -> str: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object, /) -> None: ...


def killable_broker(directory: Path, settings: Mapping[str, object]) -> KillableBroker:
    """Return a broker, not yet started, with its data under `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    if KIND == "kafka":
        return _Kafka(directory, {name: str(value) for name, value in settings.items()})
    return BrokerProcess(directory / "data", settings=settings)


class _Kafka(Kraft):
    def pause(self) -> None:
        self._java.send(signal.SIGSTOP)

    def resume(self) -> None:
        self._java.send(signal.SIGCONT)

    def __exit__(self, *_: object) -> None:
        self.resume()
        self.sigkill()
