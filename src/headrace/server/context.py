"""The context of a request, and the types of replies."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from headrace.server.frames import Parts
from headrace.slices import Steps
from headrace.storage.files.log_file import FileSlice
from headrace.types import Request
from headrace.wire.apis import ApiKey
from headrace.wire.encoder import Fields

ANONYMOUS = "User:ANONYMOUS"


@dataclass(slots=True, kw_only=True)
class ClientInfo:
    """The client of a connection; its software name and version come from ApiVersions (KIP-511)."""

    listener: str
    host: str
    port: int
    local_address: tuple[str, int]
    """Address and port that the client connected to."""
    principal: str = ANONYMOUS
    client_id: str | None = None
    """From its latest request."""
    software_name: str = "unknown"
    software_version: str = "unknown"
    give_up: Callable[[], None] | None = None
    """Ends the wait of the current request after the client has hung up; None if the request must be finished."""
    is_broker: bool = False
    """True if the client is another broker, which fetches as a follower."""
    has_hung_up: bool = False
    """True if the broker has noticed that the client hung up."""

    def __str__(self) -> str:
        software = f"{self.software_name} {self.software_version}"
        return f"client id {self.client_id} at {self.host}:{self.port} ({software})"


@dataclass(slots=True)
class RequestContext:
    """One request's header and origin."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    client: ClientInfo

    @property
    def principal(self) -> str:
        return self.client.principal

    @property
    def listener(self) -> str:
        return self.client.listener

    @property
    def client_host(self) -> str:
        return self.client.host

    @property
    def sender(self) -> str:
        """The client's id and host, for the log."""
        return f"{self.client_id} at {self.client.host}"

    @property
    def local_address(self) -> tuple[str, int]:
        return self.client.local_address


class RawReply(NamedTuple):
    """An encoded reply body: bytes and file regions, in order."""

    parts: Sequence[bytes | bytearray | FileSlice]


NO_REPLY = RawReply(())
"""The reply to a Produce with acks=0: nothing is sent."""

Reply: TypeAlias = Fields | RawReply
Answer: TypeAlias = Reply | Awaitable[Reply] | Steps[Reply | Awaitable[Reply]]
"""A reply that is ready, awaited, or produced in slices."""
Handler: TypeAlias = Callable[[RequestContext, Request], Answer]


class Apis(Protocol):
    """Handlers of several APIs."""

    def routes(self) -> Mapping[ApiKey, Handler]: ...


class Dispatch(Protocol):
    """Turns frames into the parts of their replies, now or later. Raises InvalidRequestError."""

    def handle(self, client: ClientInfo, frame: memoryview) -> Parts | Awaitable[Parts]: ...

    def handle_run(self, client: ClientInfo, frames: Sequence[memoryview]) -> Parts | Awaitable[Parts]:
        """Return the replies to several Produce requests."""
