from tests.clients.test_group_admin import *  # noqa: F403
