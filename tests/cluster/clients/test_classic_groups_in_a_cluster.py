from tests.clients.test_classic_groups import *  # noqa: F403
from tests.cluster.clients.conftest import broker

__all__ = ["broker"]
