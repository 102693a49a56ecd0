"""One driver module per client, all with the same interface, so that every scenario runs with every client."""

from collections.abc import Callable
from typing import Final

from tests.clients.drivers.aiokafka_driver import AiokafkaDriver
from tests.clients.drivers.confluent_driver import ConfluentDriver
from tests.clients.drivers.contract import ClientDriver
from tests.clients.drivers.java_driver import JavaDriver
from tests.clients.drivers.kafka_python_driver import KafkaPythonDriver
from tests.clients.drivers.kafkajs_driver import KafkajsDriver
from tests.clients.drivers.kcat_driver import KcatDriver

DRIVERS: Final[dict[str, Callable[[str], ClientDriver]]] = {
    "confluent-kafka": ConfluentDriver,
    "kafka-python": KafkaPythonDriver,
    "aiokafka": AiokafkaDriver,
    "kcat": KcatDriver,
    "kafkajs": KafkajsDriver,
    "java": JavaDriver,
}
"""Client name to a function from HOST:PORT to a driver."""

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""All clients can write and read these codecs (KafkaJS with plug-ins)."""
