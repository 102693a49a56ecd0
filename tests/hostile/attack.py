"""Send expensive requests while another client writes, which hardly waits; the broker's memory stays bounded."""

import threading
import time
from pathlib import Path
from typing import Final, Self

from tests.hostile.raw import Batch, BrokerClosedError, RawConnection
from tests.support.broker_process import BrokerProcess
from tests.support.speed import slowness
from tests.support.waiting import wait_for

TOPIC: Final = "expensive"
LONGEST_WAIT_S: Final = 0.5
MOST_MEMORY: Final = 100 * 1024 * 1024
PATIENCE_S: Final = 120.0
_QUIET_S: Final = 0.1


class Innocent:
    """Writes single records in a thread, and measures the waits and the broker's memory."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._connection = RawConnection(broker.host, broker.port)
        self._connection.socket.settimeout(PATIENCE_S)
        self._connection.create_topic("innocent")
        self._waits: list[float] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        self._thread.start()
        time.sleep(_QUIET_S)
        self._waits.clear()
        self._before = _scheduled(self._broker)
        self._rss = _memory_bytes(self._broker, "VmRSS")
        Path(f"/proc/{self._broker.pid}/clear_refs").write_text("5")  # reset the peak
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._connection.close()

    def _write(self) -> None:
        batch = Batch(values=(b"x",)).encode()
        while not self._stopped.is_set():
            started = time.perf_counter()
            assert self._connection.produce("innocent", batch)[0] == 0
            self._waits.append(time.perf_counter() - started)
            time.sleep(0.001)

    def check(self) -> None:
        """Check the longest wait, but for the broker's waits for a CPU, and the growth of the broker's memory."""
        count = len(self._waits)
        wait_for(lambda: len(self._waits) > count + 1 or not self._thread.is_alive(), "another record", timeout_s=60)
        ran, waited = (after - before for after, before in zip(_scheduled(self._broker), self._before, strict=True))
        allowed = LONGEST_WAIT_S * (1 + waited / ran) * slowness()
        longest = max(self._waits)
        assert longest <= allowed, f"a record took {longest:.2f} s, more than {allowed:.2f} s"
        grown = _memory_bytes(self._broker, "VmHWM") - self._rss
        assert grown <= MOST_MEMORY, f"memory grew by {grown >> 20} MB"


def _scheduled(broker: BrokerProcess) -> tuple[int, int]:
    """Return how long the broker's main thread ran, and how long it waited for a CPU, in ns."""
    ran, waited, _ = Path(f"/proc/{broker.pid}/task/{broker.pid}/schedstat").read_text().split()
    return int(ran), int(waited)


def _memory_bytes(broker: BrokerProcess, field: str) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(field))


def send(broker: BrokerProcess, request: bytes) -> bytes | None:
    """Return the answer after its correlation id, or None if the broker closes the connection."""
    with RawConnection(broker.host, broker.port) as connection:
        connection.socket.settimeout(PATIENCE_S)
        try:
            connection.send(request)
            return connection.receive()[4:]
        except (BrokerClosedError, ConnectionError):
            return None


def attack(broker: BrokerProcess, request: bytes) -> bytes | None:
    with Innocent(broker) as innocent:
        answer = send(broker, request)
        innocent.check()
    return answer
