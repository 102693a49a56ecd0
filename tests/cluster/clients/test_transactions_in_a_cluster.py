from tests.clients.test_transactions import *  # noqa: F403
from tests.cluster.clients.conftest import broker

__all__ = ["broker"]
