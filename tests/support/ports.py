"""Free TCP ports for processes that a test starts."""

import random
import socket

# pytest-randomly gives every xdist worker the same seed, so the shared generator would hand all of them the same ports.
_random = random.SystemRandom()


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on.

    It lies below the ranges from which Linux (32768 up) and macOS (49152 up) take ports for outgoing connections: a
    broker that is killed and started again finds its port still free.
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
