"""The fixtures, as used in a user's tests."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from headrace.config import ConfigError
from headrace.testing import Broker, Settings
from tests.support.speed import delay

pytest_plugins = ["pytester"]


def round_trip(bootstrap: str, topic: str) -> bytes | None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"hello")
    assert producer.flush(10) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        message = consumer.poll(10)
        assert message is not None
        return message.value()
    finally:
        consumer.close()


def test_a_broker_per_test(headrace_broker: Broker) -> None:
    assert round_trip(headrace_broker.bootstrap, "t") == b"hello"


def test_the_shared_broker(headrace_session_broker: Broker) -> None:
    assert round_trip(headrace_session_broker.bootstrap, "plugin-shared") == b"hello"


async def test_a_broker_beside_an_event_loop(headrace_broker: Broker) -> None:
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=headrace_broker.bootstrap) as producer:
        sent = await producer.send_and_wait("t", b"hello")
    assert sent.offset == 0


def test_a_broker_starts_within_200_ms() -> None:
    Broker().start().stop()  # only the first start pays for imports
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        with Broker() as broker:
            socket.create_connection(("127.0.0.1", broker.port)).close()
            times.append(time.perf_counter() - begin)
    assert min(times) < 0.2 * delay()


_START_AND_STOP = """
import threading
from confluent_kafka import Producer
from headrace.testing import Broker

with Broker() as broker:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("t", b"hello")
    assert producer.flush(10) == 0
    assert broker.data.is_dir()
del producer
print(broker.port, broker.data.exists(), [thread.name for thread in threading.enumerate()])
broker.stop()
"""


def test_a_stopped_broker_leaves_nothing_behind() -> None:
    # In a process of its own: the shared broker of this one may start a thread at any time.
    command = [sys.executable, "-c", _START_AND_STOP]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    port, left = printed.split(maxsplit=1)
    assert left == "False ['MainThread']\n"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)))


def test_a_given_data_directory_outlives_the_broker(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("kept", b"hello")
        assert producer.flush(10) == 0

    with Broker(data=tmp_path) as broker:
        assert "kept" in AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=10).topics


def test_an_unknown_setting_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"num\.partitons"):
        Broker({"num.partitons": "3"})


def test_two_log_directories_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^give either `data` \({tmp_path}\) or the setting log\.dirs, not both$"):
        Broker({"log.dirs": str(tmp_path / "a")}, data=tmp_path)


def test_a_port_in_use_is_reported(headrace_broker: Broker) -> None:
    with pytest.raises(ConfigError, match=f"port {headrace_broker.port} is in use"):
        Broker(port=headrace_broker.port).start()


def test_settings_are_overridden_by_a_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from confluent_kafka.admin import AdminClient

        @pytest.fixture(scope="session")
        def headrace_settings():
            return {"num.partitions": "7"}

        @pytest.mark.parametrize("number", range(4))
        def test_partitions(headrace_broker, number):
            admin = AdminClient({"bootstrap.servers": headrace_broker.bootstrap})
            assert len(admin.list_topics("auto", timeout=10).topics["auto"].partitions) in (0, 7)
        """
    )
    result = pytester.run(sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=4)


def test_settings_may_be_numbers_booleans_and_lists() -> None:
    settings: Settings = {
        "num.partitions": 3,
        "auto.create.topics.enable": False,
        "log.cleaner.min.cleanable.ratio": 0.25,
        "log.cleanup.policy": ["compact", "delete"],
    }
    with Broker(settings) as broker:
        config = broker._config
        assert (config.num_partitions, config.auto_create_topics_enable) == (3, False)
        assert (config.log_cleaner_min_cleanable_ratio, config.log_cleanup_policy) == (0.25, ("compact", "delete"))


def test_a_value_or_key_of_an_unsupported_type_is_reported() -> None:
    for value in (None, {"a": 1}, [1, 2], object):
        with pytest.raises(ConfigError, match=r"for num\.partitions: must be a string, a number"):
            Broker({"num.partitions": value})  # type: ignore[dict-item]  # as a test without types would
    with pytest.raises(ConfigError, match="names of settings must be a string"):
        Broker({3: "x"})  # type: ignore[dict-item]  # as a test without types would
