"""Free TCP ports for processes that a test starts."""

import random
import socket

# pytest-randomly seeds the shared generator alike in all xdist workers, which would then pick the same ports.
_random = random.SystemRandom()


def free_port() -> int:
    """Return a port of 127.0.0.1 without a listener.

    It is below the ports of outgoing connections (from 32768 on Linux, 49152 on macOS), so a broker that is killed and
    restarted finds it still free.
    """
    for _ in range(200):
        port = _random.randrange(20_000, 32_000)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError("no free port between 20000 and 32000 on 127.0.0.1")
