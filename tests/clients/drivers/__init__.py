"""One module per client, all behind the same contract, so that a scenario is written once and run with each."""

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
"""Name of the client to what makes a driver for the broker at HOST:PORT."""

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""Every one of these clients can write and read all of them (KafkaJS with codecs plugged in)."""
