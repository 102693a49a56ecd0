import socket
from pathlib import Path

import pytest

from headrace.broker.node import Node
from headrace.config import ConfigError, load
from tests.support.ports import free_port


async def test_a_failed_start_releases_its_address(tmp_path: Path) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as other:
        listeners = f"A://127.0.0.1:{port},B://127.0.0.1:{other.getsockname()[1]}"
        protocols = "A:PLAINTEXT,B:PLAINTEXT"
        config = load(assignments=[f"listeners={listeners}", f"listener.security.protocol.map={protocols}"])
        node = Node(config, [tmp_path], durable_metadata=False, owns_process=False)

        with pytest.raises(ConfigError, match="is in use"):
            await node.start()

    with socket.create_server(("127.0.0.1", port)):
        assert not node.listeners
