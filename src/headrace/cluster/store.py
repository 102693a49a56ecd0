"""The metadata store port: a tree of small versioned nodes, as ZooKeeper has it.

Two stores fit it: the embedded one (one broker, one file) and ZooKeeper. Who uses the port knows neither.
"""

from collections.abc import Sequence
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


class Stat(NamedTuple):
    """A node's history. A zxid is the number of a transaction: later ones have higher numbers."""

    version: int
    """Counts the sets since creation, from 0."""
    czxid: int
    """The transaction that created the node."""
    mzxid: int
    """The transaction that last wrote the data."""
    ctime_ms: int
    """Time of creation, in milliseconds since the epoch."""
    owner: int
    """The session that an ephemeral node goes with; 0 for any other node."""


class Node(NamedTuple):
    """A node's data and history."""

    data: bytes
    stat: Stat


class Create(NamedTuple):
    """Create a node below an existing parent that is not ephemeral.

    An `ephemeral` node goes with the session. The store appends a number of ten digits to the path of a `sequential`
    one: numbers below one parent only rise.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class Set(NamedTuple):
    """Replace a node's data, provided that it has `version`."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Remove a node without children, provided that it has `version`."""

    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Change nothing, provided that the node has `version`."""

    path: str
    version: int


Operation: TypeAlias = Create | Set | Delete | Check


class Done(NamedTuple):
    """The result of an operation: the node's path, with the number of a sequential one, and after a Set its history."""

    path: str
    stat: Stat | None = None


class MetadataStore(Protocol):
    """A store, seen by one session. A call raises the children of StoreError that it names, or StoreUnavailableError.

    Nothing is done in part.
    """

    @property
    def session(self) -> int:
        """The session's id, not 0: the owner of the ephemeral nodes that it creates."""

    async def get(self, path: str) -> Node:
        """The node; raises NoNodeError."""

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """The nodes at `paths`, None for those that do not exist; one pass however many they are."""

    async def exists(self, path: str) -> Stat | None:
        """The node's history; None if there is no such node."""

    async def children(self, path: str) -> list[str]:
        """Names of the node's children, sorted; raises NoNodeError."""

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """Create the node and return its path; raises NodeExistsError, and NoNodeError where its parent is missing."""

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """Replace the node's data; raises NoNodeError, BadVersionError."""

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Remove the node; raises NoNodeError, BadVersionError, NotEmptyError."""

    async def multi(self, operations: Sequence[Operation]) -> list[Done]:
        """Do all, durably and under one zxid, or none; raises what the first that fails would raise by itself."""

    async def multi_many(self, batches: Sequence[Sequence[Operation]]) -> list[list[Done] | StoreError]:
        """Do one `multi` after the other, in one pass; for each its results or why it was refused.

        One that is refused does not stop those after it. Raises nothing.
        """

    async def close(self) -> None:
        """End the session: ephemeral nodes go."""
