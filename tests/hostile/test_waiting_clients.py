"""Waits of a client while others flood the broker, or hang up during long polls.

The bounds are far above the 50 ms of an idle machine, and grow with the load of a busy one: they catch an event loop
blocked for a whole attack.
"""

import select
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.hostile.conftest import Memory
from tests.hostile.raw import (
    CREATE_TOPICS,
    FETCH,
    METADATA,
    Batch,
    RawConnection,
    array,
    create_topic_body,
    framed,
    request,
    string,
)
from tests.support.broker_process import BrokerProcess
from tests.support.speed import delay
from tests.support.waiting import wait_for

MB = 1 << 20
FLOODING = 50
IN_FLIGHT = 20
WAITING = 300
WIDE = 1_000
FOREVER_MS = 0x7FFFFFFF
MEDIAN_S = 0.1
WORST_S = 1.0
SAMPLES = 200


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("waiting") / "data") as broker:
        connection = RawConnection(broker.host, broker.port)
        connection.call(CREATE_TOPICS, 2, create_topic_body("wide", WIDE))
        connection.call(CREATE_TOPICS, 2, create_topic_body("calm"))
        connection.close()
        yield broker


class Innocent:
    """Writes single records and measures the waits."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._connection = RawConnection(broker.host, broker.port)
        self._record = Batch(values=(b"x" * 100,)).encode()
        self.waits("calm", 5)

    def waits(self, topic: str = "calm", samples: int = SAMPLES) -> list[float]:
        """Write records and return the seconds of each, sorted."""
        taken = []
        for _ in range(samples):
            began = time.perf_counter()
            assert self._connection.produce(topic, self._record)[0] == 0
            taken.append(time.perf_counter() - began)
            time.sleep(0.002)
        return sorted(taken)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def innocent(own_broker: BrokerProcess) -> Iterator[Innocent]:
    innocent = Innocent(own_broker)
    yield innocent
    innocent.close()


def check_delays(waits: list[float]) -> None:
    longer = delay()
    assert statistics.median(waits) < MEDIAN_S * longer, waits
    # the longest waits may be due to the machine
    assert waits[int(len(waits) * 0.98)] < WORST_S * longer, waits


@contextmanager
def flood(broker: BrokerProcess, frame: bytes) -> Iterator[Callable[[], int]]:
    """Keep IN_FLIGHT requests on FLOODING connections; yields a function that counts the answers."""
    answered = 0
    ended = threading.Event()

    def keep_asking() -> None:
        nonlocal answered
        with ExitStack() as crowd:
            poll = crowd.enter_context(select.epoll())
            sockets = {}
            for _ in range(FLOODING):
                connection = crowd.enter_context(RawConnection(broker.host, broker.port))
                connection.send(frame)
                size = 4 + len(connection.receive())
                connection.send(frame * IN_FLIGHT)
                sockets[connection.socket.fileno()] = connection.socket
                poll.register(connection.socket, select.EPOLLIN)
            torn = dict.fromkeys(sockets, 0)
            buffer = bytearray(MB)
            while not ended.is_set():
                for descriptor, _ in poll.poll(0.1):
                    received = sockets[descriptor].recv_into(buffer)
                    if not received:
                        return
                    whole, torn[descriptor] = divmod(torn[descriptor] + received, size)
                    answered += whole
                    if whole:
                        sockets[descriptor].sendall(frame * whole)

    asking = threading.Thread(target=keep_asking)
    asking.start()
    try:
        wait_for(lambda: answered > FLOODING, "the start of the flood", timeout_s=30)
        yield lambda: answered
    finally:
        ended.set()
        asking.join()


def all_topics() -> bytes:
    return framed(request(METADATA, 4, struct.pack(">i", -1) + b"\x00"))


def long_fetch(*, min_bytes: int = 1 << 30) -> bytes:
    """Return a Fetch v4 of all partitions of the wide topic, by default for more bytes than it gets."""
    partitions = (struct.pack(">iqi", index, 0, MB) for index in range(WIDE))
    head = struct.pack(">iiiib", -1, FOREVER_MS, min_bytes, FOREVER_MS, 0)
    return framed(request(FETCH, 4, head + array(string("wide") + array(*partitions))))


def connections(broker: BrokerProcess) -> int:
    """Count sockets only: the broker opens some of its files late."""
    count = 0
    for descriptor in Path(f"/proc/{broker.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            count += descriptor.readlink().name.startswith("socket:")
    return count


def test_pipelined_metadata_of_all_topics(own_broker: BrokerProcess, innocent: Innocent) -> None:
    with flood(own_broker, all_topics()) as answered:
        waits = innocent.waits()
        assert answered() > FLOODING
    check_delays(waits)


def test_pipelined_metadata_while_topics_are_created(own_broker: BrokerProcess, innocent: Innocent) -> None:
    """New topics invalidate cached answers."""
    ended = threading.Event()

    def keep_creating() -> None:
        with RawConnection(own_broker.host, own_broker.port) as connection:
            number = 0
            while not ended.is_set():
                number += 1
                connection.call(CREATE_TOPICS, 2, create_topic_body(f"another-{number}"))
                time.sleep(0.02)

    creating = threading.Thread(target=keep_creating)
    creating.start()
    try:
        # not `flood`, which needs answers of equal size
        with ExitStack() as crowd:
            for _ in range(FLOODING):
                crowd.enter_context(RawConnection(own_broker.host, own_broker.port)).send(all_topics() * IN_FLIGHT)
            waits = innocent.waits()
    finally:
        ended.set()
        creating.join()
    check_delays(waits)


def test_long_polls_of_clients_that_hang_up(own_broker: BrokerProcess, innocent: Innocent) -> None:
    before = connections(own_broker)
    with ExitStack() as crowd:
        for _ in range(WAITING):
            crowd.enter_context(RawConnection(own_broker.host, own_broker.port)).send(long_fetch())
        check_delays(innocent.waits())
        # writes to the polled topic are not delayed either
        check_delays(innocent.waits("wide"))
        # `before` may include closing connections of an earlier test
        assert connections(own_broker) >= WAITING
    check_delays(innocent.waits())
    wait_for(lambda: connections(own_broker) < before + 20, "the connections are closed", timeout_s=30)


@pytest.mark.slow
def test_a_client_that_hangs_up_with_pipelined_requests(own_broker: BrokerProcess) -> None:
    before = connections(own_broker)
    for _ in range(20):
        with RawConnection(own_broker.host, own_broker.port) as connection:
            connection.send(long_fetch() * 3)
    wait_for(lambda: connections(own_broker) <= before, "the connections are closed", timeout_s=30)


def test_one_record_wakes_up_many_fetches(own_broker: BrokerProcess, innocent: Innocent) -> None:
    with ExitStack() as crowd:
        for _ in range(WAITING // 3):
            crowd.enter_context(RawConnection(own_broker.host, own_broker.port)).send(long_fetch(min_bytes=1) * 5)
        check_delays(innocent.waits("wide"))


def test_memory_of_long_polls(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, ExitStack() as crowd:
        connection = crowd.enter_context(RawConnection(broker.host, broker.port))
        connection.call(CREATE_TOPICS, 2, create_topic_body("wide", WIDE))
        connection.call(CREATE_TOPICS, 2, create_topic_body("calm"))
        memory = Memory(broker)
        for _ in range(WAITING):
            crowd.enter_context(RawConnection(broker.host, broker.port)).send(long_fetch())
        assert connection.produce("wide", Batch().encode())[0] == 0
        memory.has_grown_by_at_most(160 * MB)


@pytest.mark.slow
def test_sigterm_under_attack(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with ExitStack() as crowd:
            connection = crowd.enter_context(RawConnection(broker.host, broker.port))
            connection.call(CREATE_TOPICS, 2, create_topic_body("wide", WIDE))
            for _ in range(50):
                crowd.enter_context(RawConnection(broker.host, broker.port)).send(long_fetch())
            for _ in range(FLOODING):
                crowd.enter_context(RawConnection(broker.host, broker.port)).send(all_topics() * IN_FLIGHT)
            assert broker.sigterm(timeout_s=60) == 0
        assert "Traceback" not in broker.log()
