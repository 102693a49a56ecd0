"""Sources of the demo's lines: a file read at a limited pace, or the log of a web server with simulated visitors."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from headrace.pipeline.demo.shipping.log_line import client_of
from headrace.pipeline.demo.shipping.visitors import Visitors
from headrace.pipeline.demo.shipping.web_server import WebServer
from headrace.pipeline.errors import PipelineError

_FILE_TAKES_S: Final = 4.0
"""Minimum duration of reading a file."""


Skip: TypeAlias = Callable[[bytes], bool]
"""Called with the client of each line, in order. Returns True if an earlier run has shipped the line."""


class Source(Protocol):
    """Lines without line endings, as they arrive. Users see `name`. `expected` is the number of lines, if known."""

    @property
    def name(self) -> str: ...

    @property
    def expected(self) -> int | None: ...

    def lines(self, stop: threading.Event, skip: Skip) -> Iterator[bytes]: ...


class FileSource:
    """An existing access log. Raises `PipelineError` if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        try:
            self._size = path.stat().st_size
            with path.open("rb") as file:
                self.expected: int | None = sum(1 for _ in file)
        except OSError as error:
            raise PipelineError(f"cannot read the access log {path}: {error.strerror}") from None

    def lines(self, stop: threading.Event, skip: Skip) -> Iterator[bytes]:
        """Yield the lines of the file, until its end or until stopped."""
        started = time.monotonic()
        done = 0
        with self._path.open("rb") as file:
            for line in file:
                text = line.rstrip(b"\r\n")
                if skip(client_of(text)):
                    continue
                ahead_s = done / max(1, self._size) * _FILE_TAKES_S - (time.monotonic() - started)
                if (ahead_s > 0.05 and stop.wait(ahead_s)) or stop.is_set():
                    return
                done += len(line)
                yield text


class WebServerSource:
    """The log of a web server in this process, with simulated visitors."""

    def __init__(self) -> None:
        self._log: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._server = WebServer(self._log.put)
        self._visitors = Visitors(self._server.port)
        self.name = f"a web server at http://127.0.0.1:{self._server.port}/"
        self.expected: int | None = self._visitors.requests

    def lines(self, stop: threading.Event, skip: Skip) -> Iterator[bytes]:
        """Yield the lines of the log, until the last visit or until stopped."""
        failures: list[OSError] = []

        def visit() -> None:
            try:
                self._visitors.run(stop, skip)
            except OSError as error:
                failures.append(error)
            finally:
                self._server.close()
                self._log.put(None)

        threading.Thread(target=visit, name="visits", daemon=True).start()
        while (line := self._log.get()) is not None:
            yield line
        for failure in failures:
            raise PipelineError(f"the demo's web server does not respond: {failure}")
