from tests.clients.test_every_client import *  # noqa: F403
