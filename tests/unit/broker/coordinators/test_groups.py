"""The group APIs are advertised before their handlers are created."""

from typing import Any

from headrace.broker.apis.committed_offsets import OffsetApis
from headrace.broker.apis.consumer_groups import ConsumerGroupApis
from headrace.broker.apis.group_admin import GroupAdminApis
from headrace.broker.apis.groups import GroupApis
from headrace.broker.coordinators.groups import CLASSIC_APIS, CONSUMER_APIS


def test_every_advertised_group_api_has_a_handler() -> None:
    nothing: Any = None
    families = (GroupApis(nothing, nothing, nothing, nothing), GroupAdminApis(nothing), OffsetApis(nothing, nothing))
    assert {key for family in families for key in family.routes()} == set(CLASSIC_APIS)
    assert set(ConsumerGroupApis(nothing, nothing).routes()) == set(CONSUMER_APIS)
