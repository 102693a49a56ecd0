"""This broker's addresses for clients: the advertised ones, or else the address that the client connected to."""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.cluster.image import BrokerImage
from headrace.cluster.image import Endpoint as BrokerEndpoint
from headrace.config import BrokerConfig, Listener
from headrace.server.context import RequestContext


class Endpoint(NamedTuple):
    """A broker's id and its address for a client."""

    node_id: int
    host: str
    port: int


def broker_image(config: BrokerConfig, listeners: Sequence[Listener]) -> BrokerImage:
    """Return this broker's registration; `listeners` contain the bound ports."""
    return BrokerImage(
        config.node_id,
        tuple(
            BrokerEndpoint(listener.name, listener.host, listener.port, config.security_protocol(listener.name))
            for listener in config.parsed_advertised_listeners or listeners
        ),
        config.broker_rack,
    )


def endpoint_for(config: BrokerConfig, context: RequestContext) -> Endpoint:
    """Return this broker's address for the client that sent a request."""
    for listener in config.parsed_advertised_listeners or ():
        if listener.name == context.listener:
            return Endpoint(config.node_id, listener.host, listener.port)
    return Endpoint(config.node_id, *context.local_address)
