"""Kafka's Java client in a separate JVM, used from Python through py4j."""

import atexit
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import py4j
import py4j.java_gateway
import py4j.protocol
import pytest

from tests.support.kafka_process import kafka_jars, shared_classes

_OPTIONS: Final = (
    "-Xmx192M",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    "-Dfile.encoding=UTF-8",
)
_SERIALIZER: Final = "org.apache.kafka.common.serialization.StringSerializer"
_DESERIALIZER: Final = "org.apache.kafka.common.serialization.StringDeserializer"


class JavaGateway:
    """A JVM with Kafka's jars (by default 4.3). Skips the test if Java, the jars or py4j's jar are missing."""

    def __init__(self, jars: Path | None = None) -> None:
        from py4j.java_gateway import GatewayParameters
        from py4j.java_gateway import JavaGateway as Gateway

        jars = jars or kafka_jars()
        class_path = ("-cp", f"{jars}/*:{_py4j_jar()}")
        server = ("py4j.GatewayServer", "--die-on-broken-pipe", "0")
        command = ["java", *_OPTIONS, *shared_classes(jars), *class_path, *server]
        # With `--die-on-broken-pipe`, the JVM exits when its standard input closes, so it never outlives the test.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        port = int(self._process.stdout.readline())
        self._gateway = Gateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
        self.jvm: Any = self._gateway.jvm

    def producer(self, settings: Mapping[str, object]) -> Any:
        """Return a `KafkaProducer` of strings."""
        serializers = {"key.serializer": _SERIALIZER, "value.serializer": _SERIALIZER}
        return self.jvm.org.apache.kafka.clients.producer.KafkaProducer({**serializers, **settings})

    def consumer(self, settings: Mapping[str, object]) -> Any:
        """Return a `KafkaConsumer` of strings."""
        deserializers = {"key.deserializer": _DESERIALIZER, "value.deserializer": _DESERIALIZER}
        return self.jvm.org.apache.kafka.clients.consumer.KafkaConsumer({**deserializers, **settings})

    def record(self, topic: str, partition: int, value: str) -> Any:
        return self.jvm.org.apache.kafka.clients.producer.ProducerRecord(topic, partition, None, value)

    def partition(self, topic: str, partition: int) -> Any:
        return self.jvm.org.apache.kafka.common.TopicPartition(topic, partition)

    def list(self, items: Iterable[object]) -> Any:
        array = self.jvm.java.util.ArrayList()
        for item in items:
            array.add(item)
        return array

    def array(self, kind: Any, items: Sequence[object]) -> Any:
        """Return a Java array with elements of this class (`jvm.java.lang.String`)."""
        array = self._gateway.new_array(kind, len(items))
        for index, item in enumerate(items):
            array[index] = item
        return array

    def close(self) -> None:
        self._gateway.close()
        self._process.kill()
        self._process.communicate()


@contextmanager
def without_spark() -> Iterator[None]:
    """Keep Spark, if it was started in this process, from converting exceptions with classes this JVM doesn't have."""
    of_spark = py4j.java_gateway.get_return_value
    py4j.java_gateway.get_return_value = py4j.protocol.get_return_value
    try:
        yield
    finally:
        py4j.java_gateway.get_return_value = of_spark


@cache
def shared_gateway() -> JavaGateway:
    """Return the JVM of all tests in this process: starting one and loading the client takes a second."""
    gateway = JavaGateway()
    atexit.register(gateway.close)
    return gateway


def _py4j_jar() -> Path:
    name = "py4j*.jar"
    places = [Path(py4j.__file__).parents[4] / "share" / "py4j", Path(py4j.__file__).parents[1] / "pyspark" / "jars"]
    found = [jar for place in places for jar in place.glob(name)]
    if not found or shutil.which("java") is None:
        pytest.skip("py4j's jar is not installed: it comes with the extra headrace[pipeline]")
    return found[0]
