"""The metadata store port: a tree of small versioned nodes, as ZooKeeper has it.

Two stores fit it: the embedded one (one broker, one file) and ZooKeeper. Who uses the port knows neither.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

ANY_VERSION: Final = -1


class StoreError(Exception):
    """A request that the store refused or could not serve; `path` is the node, or the file, in question.

    A store raises nothing else for a failure of its own.
    """

    what = "failed"

    def __init__(self, path: str, why: str = "") -> None:
        super().__init__(f"{path}: {self.what}" + (f" ({why})" if why else ""))
        self.path = path


class NoNodeError(StoreError):
    """The node, or the parent of a node to create, does not exist."""

    what = "no such node"


class NodeExistsError(StoreError):
    """The node to create is there already."""

    what = "node exists"


class BadVersionError(StoreError):
    """The node has changed since the version that the request names."""

    what = "node has another version"


class NotEmptyError(StoreError):
    """The node to delete has children."""

    what = "node has children"


class MalformedNodeError(StoreError):
    """The node's data is not what its writer must have meant."""

    what = "the node cannot be read: stop the broker and restore the metadata from a backup"


class StoreUnavailableError(StoreError):
    """The store cannot be read or written: a full disk, a damaged file, a lost connection. Nothing was changed."""

    what = "the metadata store is not available"


class StoreLockedError(StoreUnavailableError):
    """Another process has the store locked. Nothing was changed; the same request may succeed a moment later."""

    what = "the metadata store is locked by another process"


class Node(NamedTuple):
    """What a node holds. `version` counts the sets since creation, from 0."""

    data: bytes
    version: int


class Create(NamedTuple):
    """Create a node below an existing parent; an `ephemeral` one goes with the session."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


class Set(NamedTuple):
    """Replace a node's data, provided that it has `version`."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Remove a node without children, provided that it has `version`."""

    path: str
    version: int = ANY_VERSION


Operation: TypeAlias = Create | Set | Delete

CREATED: Final = "created"
CHANGED: Final = "changed"
DELETED: Final = "deleted"
CHILDREN: Final = "children"

CONNECTED: Final = "connected"
SUSPENDED: Final = "suspended"
"""Contact is lost; the session, and with it every ephemeral node, may or may not survive."""
EXPIRED: Final = "expired"
"""The session is gone, and every ephemeral node with it."""


class Event(NamedTuple):
    """One change: `kind` is CREATED, CHANGED, DELETED or CHILDREN."""

    kind: str
    path: str


Watcher: TypeAlias = Callable[[Event], None]
"""Called once, on the event loop, after the change is visible; then it has to be set again."""
SessionListener: TypeAlias = Callable[[str], None]
"""Told CONNECTED, SUSPENDED or EXPIRED."""


class MetadataStore(Protocol):
    """What both stores offer. A call raises the children of StoreError that it names, or StoreUnavailableError.

    Nothing is done in part.
    """

    async def get(self, path: str, watcher: Watcher | None = None) -> Node:
        """The node; raises NoNodeError. `watcher` hears of its change or deletion."""

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """The nodes at `paths`, None for those that do not exist; one pass however many they are."""

    async def exists(self, path: str, watcher: Watcher | None = None) -> int | None:
        """The node's version, or None. `watcher` hears of its creation, change or deletion."""

    async def children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        """Names of the node's children, sorted; raises NoNodeError. `watcher` hears when one comes or goes."""

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        """Create the node; raises NodeExistsError, and NoNodeError where its parent is missing."""

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Replace the node's data and return its new version; raises NoNodeError, BadVersionError."""

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Remove the node; raises NoNodeError, BadVersionError, NotEmptyError."""

    async def multi(self, operations: Sequence[Operation]) -> None:
        """Do all, durably, or none; raises what the first that fails would raise by itself."""

    def add_session_listener(self, listener: SessionListener) -> None:
        """Tell `listener` of every change of the session."""

    async def close(self) -> None:
        """End the session: ephemeral nodes go."""
