"""Transactional clients of all libraries, one module per library, with the same interface."""

from collections.abc import Callable
from typing import Final

from tests.clients.transactional.aiokafka_client import AiokafkaClient
from tests.clients.transactional.confluent_client import ConfluentClient
from tests.clients.transactional.contract import TransactionalClient
from tests.clients.transactional.java_client import JavaClient
from tests.clients.transactional.kafka_python_client import KafkaPythonClient
from tests.clients.transactional.kafkajs_client import KafkajsClient

CLIENTS: Final[dict[str, Callable[[str], TransactionalClient]]] = {
    "confluent-kafka": ConfluentClient,
    "kafka-python": KafkaPythonClient,
    "aiokafka": AiokafkaClient,
    "kafkajs": KafkajsClient,
    "java": JavaClient,
}
"""Client name to a function from HOST:PORT to a client."""
