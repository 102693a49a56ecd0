"""The metadata store port: a tree of small versioned nodes, like ZooKeeper's.

The embedded store (one broker, one file) and ZooKeeper implement it. Code that uses the port depends on neither.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

ANY_VERSION: Final = -1


class StoreError(Exception):
    """The store refused a request or could not serve it; `path` is the node or file in question.

    Stores raise no other exceptions for their own failures.
    """

    problem = "failed"

    def __init__(self, path: str, reason: str = "") -> None:
        super().__init__(f"{path}: {self.problem}" + (f" ({reason})" if reason else ""))
        self.path = path


class NoNodeError(StoreError):
    """The node, or the parent of a node to create, does not exist."""

    problem = "no such node"


class NodeExistsError(StoreError):
    """The node to create already exists."""

    problem = "node exists"


class BadVersionError(StoreError):
    """The node does not have the version in the request."""

    problem = "node has another version"


class NotEmptyError(StoreError):
    """The node to delete has children."""

    problem = "node has children"


class MalformedNodeError(StoreError):
    """The node's data cannot be decoded."""

    problem = "the node cannot be read: stop the broker and restore the metadata from a backup"


class StoreUnavailableError(StoreError):
    """The store cannot be read or written: a full disk or a lost connection, for example. Nothing was changed."""

    problem = "the metadata store is not available"


class StoreLockedError(StoreUnavailableError):
    """Another process has locked the store. Nothing was changed; a retry may succeed."""

    problem = "the metadata store is locked by another process"


class Stat(NamedTuple):
    """A node's history. Transactions have ascending numbers (zxid)."""

    version: int
    """Number of sets since creation."""
    czxid: int
    """The transaction that created the node."""
    mzxid: int
    """The transaction that last wrote the data."""
    ctime_ms: int
    """Time of creation (ms since the epoch)."""
    owner: int
    """The session of an ephemeral node; 0 for any other node."""


class Node(NamedTuple):
    """A node's data and history."""

    data: bytes
    stat: Stat


class Create(NamedTuple):
    """Create a node below an existing parent that is not ephemeral.

    An `ephemeral` node is deleted when its session ends. The store appends a ten-digit number to the path of a
    `sequential` node; below one parent, each number is larger than the last.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class Set(NamedTuple):
    """Replace a node's data if it has `version`."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Delete a node without children if it has `version`."""

    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    """Fail unless the node has `version`."""

    path: str
    version: int


Operation: TypeAlias = Create | Set | Delete | Check


class Done(NamedTuple):
    """The result of an operation. `path` includes the number of a sequential node; only a Set returns `stat`."""

    path: str
    stat: Stat | None = None


class MetadataStore(Protocol):
    """A session with a store. Methods raise the errors that their docstrings name, or StoreUnavailableError.

    Every call succeeds or fails as a whole.
    """

    @property
    def session(self) -> int:
        """The session's id; never 0. The session owns the ephemeral nodes that it creates."""

    async def get(self, path: str) -> Node:
        """Return the node; raises NoNodeError."""

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Return the nodes at `paths`, None for missing ones, in one round trip."""

    async def exists(self, path: str) -> Stat | None:
        """Return the node's history; None if it does not exist."""

    async def children(self, path: str) -> list[str]:
        """Return the names of the node's children, sorted; raises NoNodeError."""

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        """Create the node and return its path; raises NodeExistsError, or NoNodeError if its parent does not exist."""
        (done,) = await self.multi((Create(path, data, ephemeral, sequential),))
        return done.path

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """Replace the node's data; raises NoNodeError, BadVersionError."""
        (done,) = await self.multi((Set(path, data, version),))
        assert done.stat is not None, "every Set returns a stat"
        return done.stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete the node; raises NoNodeError, BadVersionError, NotEmptyError."""
        await self.multi((Delete(path, version),))

    async def multi(self, operations: Sequence[Operation]) -> list[Done]:
        """Execute all operations durably under one zxid, or none; raises the error of the first that fails."""

    async def multi_many(self, batches: Sequence[Sequence[Operation]]) -> list[list[Done] | StoreError]:
        """Execute batches in order like `multi`, in one round trip. Return the results or the error of each.

        A refused batch does not stop later ones. Raises nothing.
        """

    async def close(self) -> None:
        """End the session and delete its ephemeral nodes."""
