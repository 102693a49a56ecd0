"""Free TCP ports for processes that a test starts."""

import os
import random
import socket
from typing import Final

# pytest-randomly seeds the shared generator alike in all xdist workers, which would then pick the same ports.
_random = random.SystemRandom()
_PORTS: Final = 12_000
"""Each xdist worker has a part of them to itself, because a port is free until its broker has started."""
_given = set[int]()


def free_port() -> int:
    """Return a port of 127.0.0.1 without a listener.

    It is below the ports of outgoing connections (from 32768 on Linux, 49152 on macOS), so a broker that is killed and
    restarted finds it still free.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = _PORTS // max(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")), worker + 1)
    first = 20_000 + worker * ports
    if len(_given) > ports // 2:
        _given.clear()
    for _ in range(200):
        port = _random.randrange(first, first + ports)
        if port in _given:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
    raise RuntimeError(f"no free port between {first} and {first + ports} on 127.0.0.1")
