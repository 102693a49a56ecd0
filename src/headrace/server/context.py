"""What a handler is told of a request beside its body, and what it may answer."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from headrace.server.frames import Parts
from headrace.slices import Steps
from headrace.storage.files.log_file import FileSlice
from headrace.types import Request
from headrace.wire.encoder import Fields

ANONYMOUS = "User:ANONYMOUS"


@dataclass(slots=True, kw_only=True)
class ClientInfo:
    """Who is at the other end of a connection; `name` and `version` once ApiVersions has told them (KIP-511)."""

    listener: str
    host: str
    port: int
    local_address: tuple[str, int]
    """Address and port that the client reached."""
    principal: str = ANONYMOUS
    client_id: str | None = None
    """As its latest request gave it."""
    software_name: str = "unknown"
    software_version: str = "unknown"
    give_up: Callable[[], None] | None = None
    """Ends the wait of the request in hand, where nothing is lost by that: called when the client has hung up."""
    has_left: bool = False
    """It has hung up, as far as that can be seen."""

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
    def local_address(self) -> tuple[str, int]:
        return self.client.local_address


class RawReply(NamedTuple):
    """A response body that is encoded already: bytes and regions of files, in order."""

    parts: Sequence[bytes | bytearray | FileSlice]


NO_REPLY = RawReply(())
"""The answer to a Produce with acks=0: nothing is sent at all."""

Reply: TypeAlias = Fields | RawReply
Answer: TypeAlias = Reply | Awaitable[Reply] | Steps[Reply | Awaitable[Reply]]
"""Now, later, or in slices."""
Handler: TypeAlias = Callable[[RequestContext, Request], Answer]


class Dispatch(Protocol):
    """Turns frames into the parts of their answers, now or later. Raises InvalidRequestError."""

    def handle(self, client: ClientInfo, frame: memoryview) -> Parts | Awaitable[Parts]: ...

    def handle_run(self, client: ClientInfo, frames: Sequence[memoryview]) -> Parts | Awaitable[Parts]:
        """The answers to several Produce requests."""
