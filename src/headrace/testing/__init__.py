"""A real broker for your tests: `Broker` for any framework, fixtures for pytest (see `headrace.testing.plugin`).

The broker is that of `headrace start`, but runs in a thread with its own event loop, on a free port of 127.0.0.1. Its
data is in a temporary directory, which is deleted when the broker stops.
"""

import asyncio
import logging
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

from headrace.config import ConfigError, load

__all__ = ["TEST_SETTINGS", "Broker", "Settings"]

TEST_SETTINGS: Final[Mapping[str, str]] = {
    # Kafka's defaults would slow down tests: the first rebalance of a group waits 3 s, session timeouts are at least
    # 6 s, and the offsets topic has 50 partitions.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.num.partitions": "1",
    # Client and broker share an interpreter. While the broker polls, the client cannot run.
    "headrace.busy.poll.us": "0",
}
"""Defaults for test brokers; the settings given to `Broker` override them."""

Settings: TypeAlias = Mapping[str, str | int | float | bool | Sequence[str]]
"""Kafka's settings as Python values: `{"num.partitions": 3, "auto.create.topics.enable": False}`."""

_START_TIMEOUT: Final = 30.0


class Broker:
    """A broker that runs between `start` and `stop`, or inside a `with` block.

    `settings` are Kafka's (`{"num.partitions": 3}`): text, numbers, booleans, or lists of text. `data` replaces the
    temporary log directory, for example to restart on it; for several directories, set `log.dirs` instead. Raises
    ConfigError for unknown or invalid settings.
    """

    def __init__(self, settings: Settings | None = None, *, data: Path | None = None, port: int = 0) -> None:
        self._config = load(
            defaults={
                "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                **TEST_SETTINGS,
                **{key: _as_text(key, value) for key, value in (settings or {}).items()},
            }
        )
        given = [Path(log_dir) for log_dir in self._config.log_dirs or ()]
        if given and data is not None:
            raise ConfigError("log.dirs", None, f"give either `data` ({data}) or the setting log.dirs, not both")
        self._is_temporary = data is None and not given
        self._directories = given or [data or Path(tempfile.mkdtemp(prefix="headrace-test-"))]
        self.data = self._directories[0]
        self._thread = threading.Thread(target=self._run, name="headrace-broker", daemon=True)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self.port = port
        """The port of the listener; if 0 was given, known once the broker has started."""
        self.http: str | None = None
        """`http://HOST:PORT` if `headrace.http.listener` is set; known once the broker has started."""

    @property
    def bootstrap(self) -> str:
        """`127.0.0.1:PORT`, for `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start the broker, and return once it accepts connections.

        Raises TimeoutError after 30 s, or the exception with which the broker failed.
        """
        self._thread.start()
        if not self._ready.wait(_START_TIMEOUT):
            raise TimeoutError(f"the broker did not start within {_START_TIMEOUT:.0f} s")
        if self._failure is not None:
            self._thread.join()
            self._remove_data()
            raise self._failure
        return self

    def stop(self) -> None:
        """Shut down cleanly, and delete the data if it is in a temporary directory. Can be called more than once."""
        if self._loop is not None and self._stopped is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join()
        self._remove_data()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _remove_data(self) -> None:
        if self._is_temporary:
            shutil.rmtree(self.data, ignore_errors=True)

    def _run(self) -> None:
        from headrace.cli.start import loop_factory

        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._ready.is_set():
                logging.getLogger(__name__).exception("The test broker failed")
            self._failure = error
            self._ready.set()

    async def _serve(self) -> None:
        from headrace.broker.node import Node

        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        node = Node(self._config, self._directories, durable_metadata=False, owns_process=False)
        await node.start()
        self.port = node.listeners[0].port
        self.http = None if node.http is None else f"http://{node.http.address}"
        self._ready.set()
        waiting = [asyncio.create_task(item.wait()) for item in (self._stopped, node.failed)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for item in waiting:
            item.cancel()
        await node.stop()


def _as_text(key: object, value: object) -> str:
    """Return a value as it is written in a settings file. Raises ConfigError if it has another type."""
    if not isinstance(key, str):
        raise ConfigError(str(key), None, f"Unknown setting {key!r}: the names of settings must be a string")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float, Path)):
        return str(value)
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    # repr(): None as the value would mean an unknown setting.
    raise ConfigError(key, repr(value), "must be a string, a number, a Path, True or False, or a list of strings")
