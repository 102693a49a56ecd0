from tests.clients.test_kafka_tools import *  # noqa: F403
