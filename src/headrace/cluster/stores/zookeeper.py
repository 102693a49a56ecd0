"""The metadata store on ZooKeeper, through kazoo, which runs in its own threads.

If a reply is lost with the connection, a read is repeated; a write is repeated only if the nodes show that it was not
applied. While no server can be reached, calls wait.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.paths import _prefix_root
from kazoo.protocol.states import KazooState

from headrace.cluster.store import (
    BadVersionError,
    Check,
    Create,
    Delete,
    Done,
    MetadataStore,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Set,
    Stat,
    StoreError,
    StoreUnavailableError,
)
from headrace.cluster.stores.lost_answers import Sent, parents_to_list, paths_to_read, results_of
from headrace.cluster.stores.read_many import ReadMany

T = TypeVar("T")

_REFUSALS: Final[dict[type[Exception], type[StoreError]]] = {
    kazoo_errors.NoNodeError: NoNodeError,
    kazoo_errors.NodeExistsError: NodeExistsError,
    kazoo_errors.BadVersionError: BadVersionError,
    kazoo_errors.NotEmptyError: NotEmptyError,
    kazoo_errors.NoChildrenForEphemeralsError: StoreError,
}
_LOST: Final = (kazoo_errors.ConnectionLoss, kazoo_errors.SessionExpiredError, kazoo_errors.SessionMovedError)
"""Errors after which the request may have been executed."""
_RECONNECTION: Final = {"max_tries": -1, "delay": 0.1, "max_delay": 1.0}
"""Delays in seconds; kazoo's default maximum is a minute."""
_CONSEQUENTIAL: Final = (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)
"""kazoo's results for the operations before and after the failed one. Only the failed one has the reason."""

_MANY: Final = 10
"""Minimum number of nodes to read with one request; fewer nodes take a request each."""
_READ_AT_ONCE: Final = 500
"""Maximum number of nodes in one request: a reply is limited to 1 MB (jute.maxbuffer)."""


class SessionChange(Enum):
    """A change of the session. Watches are lost with the connection: set them again after CONNECTED."""

    CONNECTED = auto()
    """action: requests are sent. transition: from every other state; the session may be a new one."""
    SUSPENDED = auto()
    """action: requests wait; the server keeps the session until it times out. transition: the connection is lost."""
    LOST = auto()
    """action: requests wait. transition: the session has expired, and its ephemeral nodes are deleted."""


_CHANGES: Final = {
    KazooState.CONNECTED: SessionChange.CONNECTED,
    KazooState.SUSPENDED: SessionChange.SUSPENDED,
    KazooState.LOST: SessionChange.LOST,
}


class _Lost(NamedTuple):
    """The outcome of a request whose reply was lost."""

    reason: str


class ZooKeeperStore(MetadataStore):
    """A session, which is replaced by a new one after it expires. `address` is `zookeeper.connect`.

    `on_change` is called on the event loop for every change of the session.
    """

    def __init__(self, address: str, *, session_timeout_ms: int, loop: asyncio.AbstractEventLoop) -> None:
        # The broker logs changes of the session with more details.
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)
        self.address = address
        self._loop = loop
        self._client: Any = KazooClient(
            hosts=address, timeout=session_timeout_ms / 1000, connection_retry=_RECONNECTION
        )
        self._client.add_listener(self._note_state)
        self._posted: deque[Callable[[], None]] = deque()
        self._is_posted = False
        self._connected = asyncio.Event()
        self._unanswered: set[asyncio.Future[Any]] = set()
        self._closed = False
        self._reads_many = True
        self._session = 0
        self.on_change: Callable[[SessionChange], None] = lambda _: None

    async def connect(self, timeout_s: float) -> None:
        """Begin a session, and create the root.

        Raises StoreUnavailableError if no server answers in time, or if the root cannot be created.
        """
        try:
            await asyncio.to_thread(self._client.start_async)
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()
                root = await self.exists("/")
            if root is None:
                await asyncio.to_thread(self._create_root)
        except (TimeoutError, KazooTimeoutError, ValueError, OSError, kazoo_errors.KazooException) as error:
            await self.close()
            problem = f"did not answer within {timeout_s:g} s"
            if not isinstance(error, (TimeoutError, KazooTimeoutError)):
                problem = f"refused access to {self._client.chroot or '/'} ({type(error).__name__}: {error})"
            raise StoreUnavailableError(
                self.address, f"ZooKeeper {problem}: check zookeeper.connect and the ZooKeeper servers"
            ) from error

    def _create_root(self) -> None:
        """Create the path of `zookeeper.connect`, with all nodes above it, which are outside the client's root."""
        client = self._client
        root, client.chroot = client.chroot, ""
        try:
            client.ensure_path(root)
        finally:
            client.chroot = root

    @property
    def session(self) -> int:
        return self._session

    @property
    def is_closed(self) -> bool:
        return self._closed

    # Reads

    async def get(self, path: str) -> Node:
        return _node(await self._read(path, lambda: self._client.get_async(path)))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        if len(paths) < _MANY or not self._reads_many:
            return await self._get_one_by_one(paths)
        parts = [paths[begin : begin + _READ_AT_ONCE] for begin in range(0, len(paths), _READ_AT_ONCE)]
        nodes: list[Node | None] = []
        for part, pending in [(part, self._send(self._read_at_once(part))) for part in parts]:
            answer = await pending
            if isinstance(answer, _Lost) or answer.exception is not None:
                if not isinstance(answer, _Lost) and isinstance(answer.exception, kazoo_errors.UnimplementedError):
                    self._reads_many = False  # before ZooKeeper 3.6, which also closes the connection
                nodes += await self._get_one_by_one(part)
            else:
                nodes += [None if found is None else _node(found) for found in answer.value]
        return nodes

    def _read_at_once(self, paths: Sequence[str]) -> Any:
        client = self._client
        pending = client.handler.async_result()
        client._call(ReadMany([_prefix_root(client.chroot, path) for path in paths]), pending)
        return pending

    async def _get_one_by_one(self, paths: Sequence[str]) -> list[Node | None]:
        first = [self._send(self._client.get_async(path)) for path in paths]
        nodes: list[Node | None] = []
        for path, sent in zip(paths, first, strict=True):
            try:
                answer = await sent
                nodes.append(await self.get(path) if isinstance(answer, _Lost) else _node(_value(path, answer)))
            except NoNodeError:
                nodes.append(None)
        return nodes

    async def exists(self, path: str) -> Stat | None:
        found = await self._read(path, lambda: self._client.exists_async(path))
        return None if found is None else _stat(found)

    async def children(self, path: str) -> list[str]:
        return sorted(await self._read(path, lambda: self._client.get_children_async(path)))

    async def watched(self, path: str, changed: Callable[[], None]) -> Node | None:
        """Return the node; None if it does not exist. Call `changed` once when it is created, written or deleted.

        The watch is lost with the connection, without a call.
        """
        notify = self._watcher(changed)
        if await self._read(path, lambda: self._client.exists_async(path, watch=notify)) is None:
            return None
        try:
            return await self.get(path)
        except NoNodeError:
            return None  # deleted meanwhile, which the watch reports

    async def watched_children(self, path: str, changed: Callable[[], None]) -> list[str]:
        """Return the names of the node's children, sorted. Call `changed` once when one is created or deleted.

        The watch is lost with the connection, without a call. Raises NoNodeError.
        """
        notify = self._watcher(changed)
        return sorted(await self._read(path, lambda: self._client.get_children_async(path, watch=notify)))

    def _watcher(self, changed: Callable[[], None]) -> Callable[[Any], None]:
        return lambda _: self._post(changed)

    async def _read(self, path: str, request: Callable[[], Any]) -> Any:
        """Send a request, and repeat it until a reply arrives."""
        while True:
            answer = await self._send(request())
            if not isinstance(answer, _Lost):
                return _value(path, answer)
            await self._reconnected(path)

    # Writes

    async def multi(self, operations: Sequence[Operation]) -> list[Done]:
        (result,) = await self.multi_many((operations,))
        if isinstance(result, StoreError):
            raise result
        return result

    async def multi_many(self, batches: Sequence[Sequence[Operation]]) -> list[list[Done] | StoreError]:
        pending = [self._begin(operations) for operations in batches]
        return [await self._outcome(sent, answer) for sent, answer in pending]

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._connected.set()
        for future in tuple(self._unanswered):
            if not future.done():  # its callback, which removes it, may not have run yet
                future.set_result(_Lost("the session was closed"))
        with suppress(kazoo_errors.WriterNotClosedException):  # no server can be reached, and the session times out
            await asyncio.to_thread(self._client.stop)
            self._client.close()

    def _begin(self, operations: Sequence[Operation]) -> "tuple[Sent, asyncio.Future[Any]]":
        sent = Sent(operations, self._client.last_zxid, self._session)
        return sent, self._send(self._commit(operations))

    def _commit(self, operations: Sequence[Operation]) -> Any:
        transaction = self._client.transaction()
        for operation in operations:
            match operation:
                case Create(path, data, ephemeral, sequential):
                    transaction.create(path, data, ephemeral=ephemeral, sequence=sequential)
                case Set(path, data, version):
                    transaction.set_data(path, data, version)
                case Delete(path, version):
                    transaction.delete(path, version)
                case Check(path, version):
                    transaction.check(path, version)
        return transaction.commit_async()

    async def _outcome(self, sent: Sent, pending: "asyncio.Future[Any]") -> list[Done] | StoreError:
        operations = sent.operations
        path = operations[0].path if operations else "/"
        try:
            while isinstance(answer := await pending, _Lost):
                applied = await self._read_back(path, sent)
                if applied is not None:
                    return applied
                sent, pending = self._begin(operations)
            results = _value(path, answer)
        except StoreError as error:
            return error
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, Exception) and not isinstance(result, _CONSEQUENTIAL):
                return _failure(operation.path, result)
        return [
            Done(result if isinstance(operation, Create) else operation.path, _stat_of(operation, result))
            for operation, result in zip(operations, results, strict=True)
        ]

    async def _read_back(self, path: str, sent: Sent) -> list[Done] | None:
        """Return the results of a write; None if it was not applied.

        In that case it never will be, because the session has moved to another connection.
        """
        await self._reconnected(path)
        # This server may lack a write that another one has applied; after a sync it has all earlier writes.
        await self._read(path, lambda: self._client.sync_async("/"))
        paths = paths_to_read(sent)
        nodes = dict(zip(paths, await self.get_many(paths), strict=True))
        sequential: dict[str, list[tuple[str, Node]]] = {}
        for parent in parents_to_list(sent):
            try:
                children = [f"{parent.rstrip('/')}/{name}" for name in await self.children(parent)]
            except NoNodeError:
                return None
            found = await self.get_many(children)
            sequential[parent] = [(child, node) for child, node in zip(children, found, strict=True) if node]
        return results_of(sent, nodes, sequential)

    # Between the threads

    def _send(self, pending: Any) -> "asyncio.Future[Any]":
        """Return a future with kazoo's finished result for the request, or with _Lost."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._closed:
            future.set_result(_Lost("the session was closed"))
            return future
        self._unanswered.add(future)
        future.add_done_callback(self._unanswered.discard)

        def answered() -> None:
            if not future.done():
                future.set_result(_Lost(repr(pending.exception)) if _is_lost(pending.exception) else pending)

        pending.rawlink(lambda _: self._post(answered))
        return future

    def _post(self, call: Callable[[], None]) -> None:
        """Run `call` on the event loop, which wakes once for calls that arrive together. Called in kazoo's threads."""
        self._posted.append(call)
        if not self._is_posted:
            self._is_posted = True
            with suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._run_posted)

    def _run_posted(self) -> None:
        self._is_posted = False
        while self._posted:
            self._posted.popleft()()

    def _note_state(self, state: str) -> None:
        """Pass a change of the connection on to the event loop.

        Read the session id here, in kazoo's thread: the connection may be lost a moment later.
        """
        session = self._client.client_id[0] if state == KazooState.CONNECTED else 0
        self._post(partial(self._changed, _CHANGES[state], session))

    def _changed(self, change: SessionChange, session: int) -> None:
        if self._closed:
            return
        if change is SessionChange.CONNECTED:
            self._session = session
            self._connected.set()
        else:
            self._connected.clear()
        self.on_change(change)

    async def _reconnected(self, path: str) -> None:
        """Wait for the next connection. Raises StoreUnavailableError if the store is closed."""
        await asyncio.sleep(0)  # another thread posts the session change, perhaps after the lost reply
        await self._connected.wait()
        if self._closed:
            raise StoreUnavailableError(path, "the session was closed")


def _is_lost(error: BaseException | None) -> bool:
    return isinstance(error, _LOST) and not isinstance(error, kazoo_errors.ConnectionClosedError)


def _value(path: str, answer: Any) -> Any:
    """Return the value of a kazoo result. Raises StoreError."""
    if answer.exception is not None:
        raise _failure(path, answer.exception) from answer.exception
    return answer.value


def _failure(path: str, error: Exception) -> StoreError:
    return _REFUSALS.get(type(error), StoreUnavailableError)(path, repr(error))


def _node(answer: tuple[bytes, Any]) -> Node:
    data, stat = answer
    return Node(data, _stat(stat))


def _stat(stat: Any) -> Stat:
    return Stat(stat.version, stat.czxid, stat.mzxid, stat.ctime, stat.ephemeralOwner)


def _stat_of(operation: Operation, result: Any) -> Stat | None:
    return _stat(result) if isinstance(operation, Set) else None
