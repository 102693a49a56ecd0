"""`python -m bench --groups`: the cost of consumer groups, compared with Apache Kafka.

Measures loading many committed offsets at a restart, commits of many consumers, and a hundred members joining at once.
"""

import selectors
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Self

from bench import raw_client
from bench.brokers import Broker
from bench.figures import Figures

GROUPS: Final = 5000
PARTITIONS: Final = 20
CONSUMERS: Final = 1000
STORM_S: Final = 15.0
MEMBERS: Final = 100
_TOPIC: Final = "bench-groups"
_LOADING: Final = 14
_NOT_YET: Final = (_LOADING, 15, 16)
"""Error codes of a coordinator that is not ready."""


class GroupFigures(Figures):
    def measure(self) -> None:
        for make in self._makers:
            broker = make()
            try:
                broker.start()
                _create_topic(broker)
                self._loading(broker)
                for partitions in (1, 6):
                    self._storm(broker, partitions)
                for protocol in ("classic", "consumer"):
                    self._joining(broker, protocol)
            finally:
                broker.remove()

    def _loading(self, broker: Broker) -> None:
        with _Connection(broker.port) as connection:
            for number in range(GROUPS):
                connection.ask_until_ready(_commit(f"g{number}", PARTITIONS, number), _commit_error)
        broker.stop()
        start_s = broker.start()
        begin = time.perf_counter()
        with _Connection(broker.port) as connection:
            for number in range(GROUPS - 1, -1, -1):
                connection.ask_until_ready(_fetch(f"g{number}"), _fetch_error)
                if number == GROUPS - 1:
                    first = time.perf_counter() - begin
                if number == GROUPS - 200:
                    break  # these use all 50 partitions of __consumer_offsets
        label = f"{GROUPS} groups x {PARTITIONS} offsets"
        self.note(f"{label}: restart to the first group's offsets, s", broker, start_s + first)
        self.note(f"{label}: restart to all loaded, s", broker, start_s + time.perf_counter() - begin)
        self.note(f"{label}: resident memory, MB", broker, broker.resident_bytes() / 1e6)

    def _storm(self, broker: Broker, partitions: int) -> None:
        """Measure the broker's CPU share while `CONSUMERS` members commit once a second."""
        storm = _Storm(broker.port, partitions)
        storm.run(3.0)
        before, begin = broker.cpu_seconds(), time.perf_counter()
        answered = storm.run(STORM_S)
        seconds = time.perf_counter() - begin
        share = (broker.cpu_seconds() - before) / seconds * 100
        storm.close()
        self.note(f"{CONSUMERS} members commit {partitions} partitions once a second, % of a core", broker, share)
        self.note(f"  commits answered per second ({partitions} partitions)", broker, answered / seconds)

    def _joining(self, broker: Broker, protocol: str) -> None:
        from confluent_kafka import Consumer

        settings: dict[str, Any] = {
            "bootstrap.servers": broker.address,
            "group.id": f"join-{protocol}",
            "group.protocol": protocol,
            "log_level": 2,
        }
        begin = time.perf_counter()
        members = [Consumer(settings) for _ in range(MEMBERS)]
        for member in members:
            member.subscribe([_TOPIC])
        while not all(len(member.assignment()) == 1 for member in members) and time.perf_counter() < begin + 120:
            for member in members:
                member.poll(0)
            time.sleep(0.01)
        self.note(f"{MEMBERS} members (librdkafka, {protocol}) join at once, s", broker, time.perf_counter() - begin)
        for member in members:
            # Closing hangs if an assignment arrives during it (librdkafka pull request 4883).
            member.unsubscribe()
        deadline = time.perf_counter() + 30
        while any(member.poll(0) or member.assignment() for member in members) and time.perf_counter() < deadline:
            time.sleep(0.01)
        for member in members:
            member.close()


def _create_topic(broker: Broker) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic(_TOPIC, MEMBERS, 1)])[_TOPIC].result(30)
    raw_client.wait_for_produce(broker.port, _TOPIC, MEMBERS, 30)


class _Connection:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(_frame(10, 0, _string("warm-up")))  # FindCoordinator creates __consumer_offsets
        self._receive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, frame: bytes) -> bytes:
        self._socket.sendall(frame)
        return self._receive()

    def ask_until_ready(self, frame: bytes, error_of: Callable[[bytes], int]) -> None:
        deadline = time.monotonic() + 120
        while (error := error_of(self.ask(frame))) and time.monotonic() < deadline:
            if error not in _NOT_YET:
                raise RuntimeError(f"the broker refused a request about a group with error code {error}")
            time.sleep(0.002)

    def _receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._socket.recv(4, socket.MSG_WAITALL))
        return self._socket.recv(size, socket.MSG_WAITALL)


class _Storm:
    """Members that commit, with a separate group and connection each."""

    def __init__(self, port: int, partitions: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._sockets: list[tuple[socket.socket, bytes]] = []
        for number in range(CONSUMERS):
            group = f"storm-{partitions}-{number}"
            with suppress(OSError):
                connection = _Connection(port)
                member_id, generation = _member(connection, group)
                commit = _commit(group, partitions, number, member_id, generation)
                connection.ask_until_ready(commit, _commit_error)
                connection._socket.setblocking(False)
                self._selector.register(connection._socket, selectors.EVENT_READ)
                self._sockets.append((connection._socket, commit))
        if len(self._sockets) < CONSUMERS:
            raise RuntimeError(f"{CONSUMERS - len(self._sockets)} connections failed: raise `ulimit -n`")

    def run(self, seconds: float) -> int:
        """Send one commit per member and second, evenly spread. Return the number of replies."""
        begin = time.perf_counter()
        answered = sent = 0
        while (now := time.perf_counter()) < begin + seconds:
            while sent < (now - begin) * CONSUMERS:
                connection, commit = self._sockets[sent % CONSUMERS]
                connection.send(commit)
                sent += 1
            for key, _ in self._selector.select(0.001):
                assert isinstance(key.fileobj, socket.socket)
                answered += bool(key.fileobj.recv(65536))
        return answered

    def close(self) -> None:
        for connection, _ in self._sockets:
            connection.close()
        self._selector.close()


def _member(connection: _Connection, group: str) -> tuple[bytes, int]:
    """Join a group as its only member. Return the member id and the generation."""
    metadata = b"\x00\x00\x00\x00\x00\x01" + _string(_TOPIC) + b"\xff\xff\xff\xff"
    protocol = struct.pack(">i", 1) + _string("range") + struct.pack(">i", len(metadata)) + metadata
    timeouts = struct.pack(">ii", 30_000, 60_000)
    answer = connection.ask(_frame(11, 2, _string(group) + timeouts + _string("") + _string("consumer") + protocol))
    error, generation = struct.unpack_from(">hi", answer, 8)
    if error:
        raise RuntimeError(f"the broker refused JoinGroup of {group} with error code {error}")
    position = 14
    for _ in range(2):  # protocol, leader
        position += 2 + struct.unpack_from(">h", answer, position)[0]
    size = struct.unpack_from(">h", answer, position)[0]
    member_id = answer[position + 2 : position + 2 + size]
    quoted = struct.pack(">h", size) + member_id
    assignment = struct.pack(">i", 1) + quoted + struct.pack(">i", 6) + b"\x00\x00\x00\x00\x00\x00"
    connection.ask(_frame(14, 1, _string(group) + struct.pack(">i", generation) + quoted + assignment))
    return member_id, generation


def _commit(group: str, partitions: int, offset: int, member_id: bytes = b"", generation: int = -1) -> bytes:
    """Encode OffsetCommit v2."""
    member = struct.pack(">ih", generation, len(member_id)) + member_id + struct.pack(">q", -1)
    rows = b"".join(struct.pack(">iqh", index, offset, 0) for index in range(partitions))
    body = _string(group) + member + struct.pack(">i", 1) + _string(_TOPIC) + struct.pack(">i", partitions) + rows
    return _frame(8, 2, body)


def _commit_error(answer: bytes) -> int:
    return int(struct.unpack_from(">h", answer, len(answer) - 2)[0])


def _fetch(group: str) -> bytes:
    """Encode OffsetFetch v2 of one partition."""
    return _frame(9, 2, _string(group) + struct.pack(">i", 1) + _string(_TOPIC) + struct.pack(">ii", 1, 0))


def _fetch_error(answer: bytes) -> int:
    return int(struct.unpack_from(">h", answer, len(answer) - 2)[0])


def _frame(api_key: int, version: int, body: bytes) -> bytes:
    frame = struct.pack(">hhi", api_key, version, 1) + _string("bench") + body
    return struct.pack(">i", len(frame)) + frame


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
