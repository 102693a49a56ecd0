"""Too many, too slow or too fast clients: memory stays bounded and other clients are served."""

import resource
import struct
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.wire.apis import ApiKey
from tests.clients.brokers import start_broker
from tests.hostile.conftest import BrokerLog, Bystander, Memory
from tests.hostile.raw import (
    API_VERSIONS,
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    PRODUCE,
    Batch,
    RawConnection,
    array,
    fetch_body,
    framed,
    produce_body,
    request,
    string,
)
from tests.support.broker_process import BrokerProcess
from tests.support.speed import delay
from tests.support.wire_client import WireClient

MB = 1 << 20
IDLE_CONNECTIONS = 5_000
SPARE_DESCRIPTORS = 200


def test_five_thousand_idle_connections(address: tuple[str, int], bystander: Bystander, memory: Memory) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE_CONNECTIONS + SPARE_DESCRIPTORS
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            pytest.skip(f"ulimit -n allows {hard} descriptors; raise it to {wanted}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    with ExitStack() as crowd:
        connections = [crowd.enter_context(RawConnection(*address)) for _ in range(IDLE_CONNECTIONS)]
        bystander.check()
        # idle connections still work
        for connection in connections[:: IDLE_CONNECTIONS // 10]:
            assert connection.call(API_VERSIONS, 0, b"")[:2] == b"\x00\x00"
        memory.has_grown_by_at_most(30 * MB)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_clients_that_send_one_byte_at_a_time(address: tuple[str, int], bystander: Bystander) -> None:
    content = framed(request(API_VERSIONS, 0, b""))
    with ExitStack() as crowd:
        slow_clients = [crowd.enter_context(RawConnection(*address)) for _ in range(20)]
        for position in range(len(content)):
            for client in slow_clients:
                client.send(content[position : position + 1])
            if position % 5 == 0:
                bystander.check()
        for client in slow_clients:
            assert client.receive()[4:6] == b"\x00\x00"


def test_many_large_incomplete_requests(address: tuple[str, int], bystander: Bystander, memory: Memory) -> None:
    """Every client sends half of a large request."""
    announced = 90 * MB
    with ExitStack() as crowd:
        clients = [crowd.enter_context(RawConnection(*address)) for _ in range(40)]
        for client in clients:
            client.socket.setblocking(False)
            client.socket.send(struct.pack(">i", announced))
        sent = 0
        for _ in range(60):
            for client in clients:
                try:
                    sent += client.socket.send(bytes(MB))
                except BlockingIOError:
                    continue
            if sent > 500 * MB:
                break
        bystander.check()
        memory.has_grown_by_at_most(200 * MB)


def test_a_client_that_never_reads_metadata(address: tuple[str, int], bystander: Bystander, memory: Memory) -> None:
    with RawConnection(*address, receive_buffer=4096) as reader:
        sent = send_until_blocked(reader, framed(request(METADATA, 4, struct.pack(">i", -1) + b"\x00")) * 100)
        bystander.check()
        memory.has_grown_by_at_most(40 * MB)
        assert sent < 200 * MB


def test_a_client_that_never_reads_records(
    address: tuple[str, int], topic: str, bystander: Bystander, memory: Memory
) -> None:
    with RawConnection(*address) as connection:
        for _ in range(20):
            assert connection.produce(topic, Batch(values=(bytes(900_000),)).encode())[0] == 0
    with ExitStack() as crowd:
        readers = [crowd.enter_context(RawConnection(*address, receive_buffer=4096)) for _ in range(8)]
        wanted = framed(request(FETCH, 4, fetch_body(topic, 0, max_bytes=50 * MB)))
        for reader in readers:
            send_until_blocked(reader, wanted * 100)
        bystander.check()
        memory.has_grown_by_at_most(60 * MB)


def test_a_producer_that_never_waits(
    address: tuple[str, int], topic: str, bystander: Bystander, memory: Memory
) -> None:
    """A producer faster than the disk has to wait, and loses no acknowledged record."""
    batch = Batch(values=(bytes(500_000),)).encode()
    content = framed(request(PRODUCE, 8, produce_body(topic, batch)))
    with RawConnection(*address) as connection:
        for lot in range(20):
            for _ in range(20):
                connection.send(content)
            if lot % 5 == 0:
                bystander.check()
        for expected in range(400):
            answer = connection.receive()
            partition, error, offset = struct.unpack_from(">ihq", answer, 4 + 4 + 2 + len(topic) + 4)
            assert (partition, error, offset) == (0, 0, expected)
    memory.has_grown_by_at_most(60 * MB)


def test_metadata_of_thousands_of_invalid_topics_creates_none(
    address: tuple[str, int], bystander: Bystander, log: BrokerLog
) -> None:
    names = array(*(string(f"hostile none {number}") for number in range(20_000)))
    with RawConnection(*address) as connection:
        connection.call(METADATA, 4, names + b"\x01")
    log.has_no_traceback()
    bystander.check()


def test_thousands_of_short_connections(address: tuple[str, int], bystander: Bystander, memory: Memory) -> None:
    for _ in range(2_000):
        RawConnection(*address).close()
    bystander.check()
    memory.has_grown_by_at_most(20 * MB)


def test_a_coordinator_is_usable_once_it_is_found(tmp_path: Path) -> None:
    """Many clients ask a new broker at once; the first request creates the offsets topic."""
    broker = start_broker(tmp_path)
    host, _, port = broker.bootstrap.rpartition(":")
    group = string("impatient")
    try:
        with ExitStack() as crowd:
            clients = [crowd.enter_context(RawConnection(host, int(port))) for _ in range(10)]
            for client in clients:
                client.send(framed(request(FIND_COORDINATOR, 1, group + b"\x00")))
            for client in clients:
                (error,) = struct.unpack_from(">h", client.receive(), 8)
                assert error == 0
                answer = client.call(OFFSET_FETCH, 5, group + struct.pack(">i", -1))
                assert struct.unpack_from(">ih", answer, 4) == (0, 0)
    finally:
        broker.close()


def send_until_blocked(connection: RawConnection, content: bytes) -> int:
    """Send requests until the broker stops reading, and return the number of bytes sent."""
    connection.socket.settimeout(0.5)
    sent = 0
    try:
        while sent < 400 * MB:
            connection.socket.sendall(content)
            sent += len(content)
    except TimeoutError:
        pass
    return sent


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
@pytest.mark.slow
def test_descriptions_of_all_log_directories_in_flight(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, ExitStack() as crowd:
        with WireClient(broker.bootstrap) as client:
            for number in range(10):
                new = {"name": f"t{number}", "num_partitions": 300, "replication_factor": 1}
                creation = {"topics": [new | {"assignments": [], "configs": []}], "timeout": 60_000}
                client.ask(ApiKey.CREATE_TOPICS, 5, creation | {"validate_only": False})
        before = broker.rss_bytes()
        host, _, port = broker.bootstrap.rpartition(":")
        connections = [crowd.enter_context(RawConnection(host, int(port))) for _ in range(300)]
        for connection in connections:
            connection.send(framed(request(ApiKey.DESCRIBE_LOG_DIRS, 1, struct.pack(">i", -1))))
        for connection in connections:
            assert len(connection.receive()) > 60_000
        peak = next(
            int(line.split()[1]) * 1024
            for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines()
            if line.startswith("VmHWM")
        )
    assert peak - before < 30 * MB


def test_a_crowd_of_new_clients_with_expensive_first_requests(
    address: tuple[str, int], topic: str, log: BrokerLog
) -> None:
    """The requests take milliseconds; together they take seconds, during which others are served."""
    entries = array(*[struct.pack(">iq", 0, -1)] * 1_900)
    wanted = framed(request(LIST_OFFSETS, 1, struct.pack(">i", -1) + array(string(topic) + entries)))
    with ExitStack() as crowd:
        bystander = crowd.enter_context(RawConnection(*address))
        assert bystander.produce(topic, Batch().encode())[0] == 0
        clients = [crowd.enter_context(RawConnection(*address)) for _ in range(400)]
        for client in clients:
            client.send(wanted)
        began = time.monotonic()
        longest = 0.0
        while time.monotonic() - began < 1:
            before = time.monotonic()
            assert bystander.produce(topic, Batch().encode())[0] == 0
            longest = max(longest, time.monotonic() - before)
        for client in clients:
            client.socket.settimeout(60)
            client.receive()
        total = time.monotonic() - began
    assert longest < max(0.5 * delay(), total / 4), f"a record took {longest:.2f} s, all requests {total:.2f} s"
    log.has_no_traceback()
