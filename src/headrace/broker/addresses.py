"""Where clients find this broker: what is advertised, or the very address that a client reached."""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.cluster.image import BrokerImage
from headrace.cluster.image import Endpoint as BrokerEndpoint
from headrace.config import BrokerConfig, Listener
from headrace.server.context import RequestContext


class Endpoint(NamedTuple):
    """A broker as a client is told of it."""

    node_id: int
    host: str
    port: int


def broker_image(config: BrokerConfig, listeners: Sequence[Listener]) -> BrokerImage:
    """This broker as the cluster knows it; `listeners` have the real ports."""
    return BrokerImage(
        config.node_id,
        tuple(
            BrokerEndpoint(each.name, each.host, each.port, config.security_protocol(each.name))
            for each in config.parsed_advertised_listeners or listeners
        ),
        config.broker_rack,
    )


def endpoint_for(config: BrokerConfig, context: RequestContext) -> Endpoint:
    """Where the client that sends a request finds this broker."""
    for each in config.parsed_advertised_listeners or ():
        if each.name == context.listener:
            return Endpoint(config.node_id, each.host, each.port)
    return Endpoint(config.node_id, *context.local_address)
