"""A broker, and a client that must be served whatever the others do."""

import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from tests.clients.brokers import BrokerUnderTest, start_broker
from tests.hostile.raw import Batch, RawConnection
from tests.support.broker_process import BrokerProcess
from tests.support.speed import delay
from tests.support.waiting import wait_for

_MEMORY: Final = Path("/dev/shm")
_ROOM: Final = 4 << 30
PROMPTLY_S: Final = 5.0
"""The longest wait of the bystander, on an idle machine."""


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerUnderTest]:
    """A broker shared by all tests, so that damage done by one shows in the next.

    Its data is in memory, if there is room: the tests measure how long requests hold the event loop, and a busy disk
    may need a second for a write.
    """
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("broker")
        if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM:
            directory = Path(stack.enter_context(TemporaryDirectory(dir=_MEMORY)))
        broker = start_broker(directory)
        stack.callback(broker.close)
        yield broker


@pytest.fixture
def address(broker: BrokerUnderTest) -> tuple[str, int]:
    host, _, port = broker.bootstrap.rpartition(":")
    return host, int(port)


@pytest.fixture
def topic(address: tuple[str, int]) -> str:
    name = f"hostile-{uuid.uuid4().hex[:12]}"
    with RawConnection(*address) as connection:
        create_topic(connection, name)
    return name


def create_topic(connection: RawConnection, name: str) -> None:
    """Create a topic and wait for its leader, which Kafka elects after the answer."""
    assert connection.create_topic(name) == 0
    wait_for(lambda: connection.fetch(name, 0)[0] == 0, f"{name} has a leader", timeout_s=30.0)


class Bystander:
    """A well-behaved client with its own topic, connected before the test."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._topic = f"bystander-{uuid.uuid4().hex[:12]}"
        self._connection = RawConnection(*address)
        create_topic(self._connection, self._topic)
        self._next_offset = 0

    def check(self) -> None:
        """Check that produce and fetch on the old connection, and metadata on a new one, are answered promptly."""
        started = time.monotonic()
        records = Batch(values=(b"still here",)).encode()
        assert self._connection.produce(self._topic, records) == (0, self._next_offset)
        error, fetched = self._connection.fetch(self._topic, self._next_offset)
        assert error == 0
        assert fetched.endswith(b"still here\x00")
        self._next_offset += 1
        with RawConnection(*self._address) as another:
            assert another.auto_create_topic(self._topic) == 0
        taken = time.monotonic() - started
        assert taken < PROMPTLY_S or taken < PROMPTLY_S * delay()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def bystander(address: tuple[str, int]) -> Iterator[Bystander]:
    """A client checked before and after the test."""
    bystander = Bystander(address)
    bystander.check()
    yield bystander
    bystander.check()
    bystander.close()


class BrokerLog:
    """The lines that Headrace logs after its creation; empty for Apache Kafka."""

    def __init__(self, broker: BrokerUnderTest) -> None:
        self._broker = broker if isinstance(broker, BrokerProcess) else None
        self._before = len(broker.log()) if isinstance(broker, BrokerProcess) else 0

    def has_warning(self, *wanted: str) -> None:
        """Wait for exactly one warning with all of `wanted`, and no traceback."""
        if self._broker is None:
            return
        lines = wait_for(lambda: self._warnings(wanted), f"a log line with {wanted}", timeout_s=30.0)
        assert len(lines) == 1, lines
        self.has_no_traceback()

    def has_no_traceback(self) -> None:
        assert "Traceback" not in self._new()

    def _warnings(self, wanted: tuple[str, ...]) -> list[str]:
        return [
            line for line in self._new().splitlines() if " WARNING " in line and all(part in line for part in wanted)
        ]

    def _new(self) -> str:
        return "" if self._broker is None else self._broker.log()[self._before :]


@pytest.fixture
def log(broker: BrokerUnderTest) -> BrokerLog:
    return BrokerLog(broker)


class Memory:
    """The growth of Headrace's memory since its creation; not measured for Apache Kafka."""

    def __init__(self, broker: BrokerUnderTest) -> None:
        self._broker = broker if isinstance(broker, BrokerProcess) else None
        self._before = broker.rss_bytes() if isinstance(broker, BrokerProcess) else 0

    def has_grown_by_at_most(self, size: int) -> None:
        if self._broker is not None:
            grown = self._broker.rss_bytes() - self._before
            assert grown <= size, f"memory grew by {grown >> 20} MB, more than {size >> 20} MB"


@pytest.fixture
def memory(broker: BrokerUnderTest) -> Memory:
    return Memory(broker)
