"""A driver that starts together with a new Kafka cluster, which has no coordinator of groups yet."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.brokers import Kafka
from tests.support.kafka_process import kafka_jars

_OPENED = """
import sys, threading
from headrace.pipeline.engine.exactly_once.publishing import TransactionalPublisher
from headrace.pipeline.spec.client_settings import plain
publishers = [TransactionalPublisher(plain(sys.argv[1]), f"job-{number}", 1) for number in range(10)]
threads = [threading.Thread(target=publisher.open, args=("q",)) for publisher in publishers]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*(publisher.is_published(0) for publisher in publishers))
"""


@pytest.mark.java
@pytest.mark.slow
def test_publishers_wait_for_the_coordinator_of_their_group(tmp_path: Path) -> None:
    # librdkafka would crash the process.
    kafka = Kafka(tmp_path / "kafka", kafka_jars())  # with 50 partitions of offsets, as usual
    try:
        kafka.start()
        command = [sys.executable, "-c", _OPENED, kafka.address]
        found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    finally:
        kafka.remove()
    assert (found.returncode, found.stdout.split()) == (0, ["False"] * 10), found.stderr
