"""At the limit of open files, clients are refused before a log lacks one; logs may outnumber files."""

import contextlib
import resource
import socket
import sys
from pathlib import Path

import pytest

from headrace.wire.apis import ApiKey
from tests.support.broker_process import BrokerProcess
from tests.support.topic_requests import create, fetched, produce
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

LIMIT = 256
PARTITIONS = 300


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sets the limits of another process")
def test_clients_cannot_exhaust_the_file_descriptors(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, contextlib.ExitStack() as stack:
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
        client = stack.enter_context(WireClient(broker.bootstrap))
        for name, partitions in (("t", PARTITIONS), ("u", 20)):
            assert create(client, name, partitions) == "none"
        crowd = [stack.enter_context(socket.create_connection((broker.host, broker.port))) for _ in range(LIMIT)]
        wait_for(lambda: "`ulimit -n` allows 256" in broker.log(), "a line that explains the refusals")
        # Requests that load code, or create or open files, still succeed.
        for _ in range(2):
            for partition in range(PARTITIONS):
                assert produce(client, "t", partition) == "none"
        for partition in range(PARTITIONS):
            assert fetched(client, "t", partition)["high_watermark"] == 2
        client.ask(ApiKey.DESCRIBE_CLUSTER, 2, dict.fromkeys(FLAGS, False) | {"endpoint_type": 1})
        for connection in crowd:
            connection.close()

        def answered() -> str | None:
            with contextlib.suppress(OSError), WireClient(broker.bootstrap) as late:
                return produce(late, "u", 0)
            return None

        assert wait_for(answered, "an answer to a new client") == "none"
        assert "Traceback" not in broker.log()


FLAGS = ("include_cluster_authorized_operations", "include_fenced_brokers")
