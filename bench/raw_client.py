"""A client with one blocking socket and encoded frames: it costs so little that the figures are the broker's."""

import gc
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from bench import frames


class Latencies(NamedTuple):
    """Percentiles in ms."""

    p50: float
    p99: float
    p999: float


def wait_for_answer(port: int, timeout_s: float) -> None:
    """Wait until the broker answers ApiVersions. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
                connection.sendall(frames.api_versions())
                if receive_frame(connection):
                    return
        except OSError:
            time.sleep(0.002)
    raise TimeoutError(f"no broker answered on port {port} within {timeout_s} s")


def wait_for_produce(port: int, topic: str, partitions: int, timeout_s: float) -> None:
    """Write a record to each partition of `topic`, and repeat it until all accept it. Raises TimeoutError."""
    frame = frames.produce(topic, range(partitions), records=1, record_size=100)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
                while time.monotonic() < deadline:
                    connection.sendall(frame)
                    answer = receive_frame(connection)
                    if answer and not any(frames.produce_errors(answer)):
                        return
                    time.sleep(0.002)
        except OSError:
            time.sleep(0.002)
    raise TimeoutError(f"not all partitions of {topic} on port {port} accepted a record within {timeout_s} s")


def synchronous(port: int, topic: str, seconds: float, *, acks: int = 1) -> Latencies:
    """Send records for `seconds`, one at a time, waiting for each reply. The first 2 % of latencies do not count."""
    frame = frames.produce(topic, range(1), records=1, record_size=100, acks=acks)
    latencies: list[float] = []
    with _connected(port, frame) as (connection, size):
        buffer = bytearray(size)
        clock = time.perf_counter
        begin = clock()
        end = begin + seconds
        after = begin
        while after < end:
            before = clock()
            connection.sendall(frame)
            connection.recv_into(buffer, size, socket.MSG_WAITALL)
            after = clock()
            latencies.append(after - before)
        _check(bytes(buffer[4:]))
    latencies = sorted(latencies[len(latencies) // 50 :])
    return Latencies(*(1000 * latencies[int(len(latencies) * share)] for share in (0.5, 0.99, 0.999)))


def pipelined(port: int, frame: bytes, *, in_flight: int, seconds: float) -> float:
    """Keep `in_flight` requests in flight on one connection for `seconds`. Return the requests per second.

    Raises OSError if the broker closes the connection.
    """
    with _connected(port, frame) as (connection, size):
        many = memoryview(frame * in_flight)
        buffer = bytearray(65536)
        answered = torn = 0
        begin = time.perf_counter()
        end = begin + seconds
        connection.sendall(many)
        now = begin
        while now < end:
            received = connection.recv_into(buffer)
            if not received:
                raise ConnectionResetError("the broker closed the connection")
            whole, torn = divmod(torn + received, size)
            if whole:
                answered += whole
                connection.sendall(many[: whole * len(frame)])
            now = time.perf_counter()
        # Read the remaining answers, so that the broker is idle before the next measurement.
        left = in_flight * size - torn
        while left > 0 and (received := connection.recv_into(buffer)):
            left -= received
    return answered / (now - begin)


@contextmanager
def _connected(port: int, frame: bytes) -> Iterator[tuple[socket.socket, int]]:
    """Connect and send `frame` once. Yield the connection and the size in bytes of each reply."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(frame)
        answer = receive_frame(connection)
        _check(answer)
        connection.settimeout(None)
        gc.disable()
        try:
            yield connection, len(answer) + 4
        finally:
            gc.enable()


def _check(answer: bytes) -> None:
    errors = [code for code in frames.produce_errors(answer) if code]
    if errors:
        raise RuntimeError(f"the broker refused a Produce request with error code {errors[0]}")


def receive_frame(connection: socket.socket) -> bytes:
    """Return the next reply without its length; empty if the connection was closed."""
    size = connection.recv(4, socket.MSG_WAITALL)
    if len(size) < 4:
        return b""
    (length,) = struct.unpack(">i", size)
    return connection.recv(length, socket.MSG_WAITALL)
