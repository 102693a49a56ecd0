"""A fake ZooKeeper: three servers with one history, sessions that expire, and a client with the interface of kazoo.

A server may lag, so reads are stale and watches late; a client reads its own writes. When a connection breaks, the
answers under way are lost, and with them all watches. The store of the product and its handling of lost answers are
the real ones.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple

from kazoo import exceptions
from kazoo.protocol.states import KazooState

from headrace.cluster.stores.read_many import ReadMany
from tests.simulation.cluster.loop import Process, ProcessLoop
from tests.simulation.cluster.net import INSTANT_S, Address, End, Network

HOST: Final = "zk"
_ADDRESS: Final[Address] = (HOST, 2181)
_SERVERS: Final = 3
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0


class Stat(NamedTuple):
    """The history of a node, with ZooKeeper's names."""

    version: int
    czxid: int
    mzxid: int
    ctime: int
    ephemeralOwner: int  # noqa: N815


class ZNode(NamedTuple):
    data: bytes
    stat: Stat
    next_child: int = 0


Changes = dict[str, ZNode | None]
"""The nodes that a transaction has written; None for deleted ones."""


class Operation(NamedTuple):
    kind: str
    path: str
    data: bytes = b""
    version: int = -1
    ephemeral: bool = False
    sequential: bool = False


class Connect(NamedTuple):
    """The first message of a client: its session, 0 for a new one, and the latest transaction that it has seen."""

    session: int
    zxid: int
    timeout_s: float


class Connected(NamedTuple):
    """The answer: the session, 0 if it has expired."""

    session: int


class Request(NamedTuple):
    """`kind` is get, get_many, exists, children, sync, close or multi."""

    kind: str
    path: str
    watch: bool = False
    operations: Sequence[Operation] = ()
    paths: Sequence[str] = ()


class Reply(NamedTuple):
    zxid: int
    value: Any
    error: Exception | None


class Event(NamedTuple):
    """A watch has fired. `kind` is data or children."""

    kind: str
    path: str


PING: Final = "ping"


@dataclass
class Session:
    id: int
    timeout_s: float
    expires_at: float
    connection: "Connection | None" = None


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def children_of(nodes: dict[str, ZNode], path: str) -> list[str]:
    prefix = path.rstrip("/") + "/"
    size = len(prefix)
    return sorted(name[size:] for name in nodes if name.startswith(prefix) and "/" not in name[size:] and name != "/")


class Ensemble:
    """The servers together. `committed` is called with the changes of every transaction."""

    def __init__(self, loop: ProcessLoop, network: Network, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.network = network
        self.process = Process(HOST)
        self.nodes: dict[str, ZNode] = {"/": ZNode(b"", Stat(0, 0, 0, 0, 0))}
        """The tree after the latest transaction."""
        self.zxid = 0
        self.sessions: dict[int, Session] = {}
        self.is_away = False
        self.slow_servers = 0.05
        """The probability that a server applies a transaction late."""
        self.committed: Callable[[Changes], None] = lambda _: None
        self._last_session = 0
        self.servers = [Server(self) for _ in range(_SERVERS)]
        network.listen(_ADDRESS, self.process, self._accept)

    def _accept(self, end: End) -> None:
        if self.is_away:
            end.receive, end.lost = lambda _: None, lambda _: None
            end.abort()
        else:
            self.random.choice(self.servers).accept(end)

    def client(self, *, timeout: float, **_: object) -> "Client":
        """Return what `KazooClient` would be."""
        return Client(self, timeout)

    # Faults

    def go_away(self) -> None:
        self.is_away = True
        self.drop_connections()

    def come_back(self) -> None:
        """Serve again. As in ZooKeeper, all sessions get their whole timeout."""
        self.is_away = False
        for session in self.sessions.values():
            self.heard(session)

    def drop_connections(self) -> None:
        for server in self.servers:
            for connection in tuple(server.connections):
                connection.close()

    # Sessions

    def attach(self, connection: "Connection", wanted: Connect) -> Session | None:
        """Begin or continue a session on a connection; return None if it has expired."""
        if wanted.session:
            found = self.sessions.get(wanted.session)
            if found is None:
                return None
            session = found
            if session.connection is not None:
                session.connection.close()
        else:
            self._last_session += 1
            session = self.sessions[self._last_session] = Session(self._last_session, wanted.timeout_s, 0.0)
            self.loop.call_later(wanted.timeout_s, self._check, session)
        session.connection = connection
        self.heard(session)
        return session

    def heard(self, session: Session) -> None:
        session.expires_at = self.loop.now + session.timeout_s

    def _check(self, session: Session) -> None:
        if self.is_away:
            self.loop.call_later(session.timeout_s, self._check, session)
        elif session.id in self.sessions:
            if session.expires_at > self.loop.now:
                self.loop.call_at(session.expires_at, self._check, session)
            else:
                self.expire(session)

    def expire(self, session: Session) -> None:
        """End a session and delete its nodes."""
        if self.sessions.pop(session.id, None) is None:
            return
        gone = [path for path, node in self.nodes.items() if node.stat.ephemeralOwner == session.id]
        if gone:
            self._commit(dict.fromkeys(gone))
        if session.connection is not None:
            session.connection.close()

    # Transactions

    def execute(self, session: Session, operations: Sequence[Operation]) -> list[Any]:
        """Execute all operations or none; return kazoo's results of a transaction."""
        changes: Changes = {}
        results: list[Any] = []
        for operation in operations:
            try:
                results.append(self._apply(session, operation, changes))
            except exceptions.ZookeeperError as error:
                done = len(results)
                left = len(operations) - done - 1
                return [
                    *(exceptions.RolledBackError() for _ in range(done)),
                    error,
                    *(exceptions.RuntimeInconsistency() for _ in range(left)),
                ]
        if changes:
            self._commit(changes)
        return results

    def _apply(self, session: Session, operation: Operation, changes: Changes) -> Any:
        def find(path: str) -> ZNode | None:
            return changes[path] if path in changes else self.nodes.get(path)

        zxid = self.zxid + 1
        path = operation.path
        if operation.kind == "create":
            parent_path = parent_of(path)
            parent = find(parent_path)
            if parent is None:
                raise exceptions.NoNodeError
            if parent.stat.ephemeralOwner:
                raise exceptions.NoChildrenForEphemeralsError
            if operation.sequential:
                path = f"{path}{parent.next_child:010}"
            if find(path) is not None:
                raise exceptions.NodeExistsError
            if operation.sequential:
                changes[parent_path] = parent._replace(next_child=parent.next_child + 1)
            owner = session.id if operation.ephemeral else 0
            changes[path] = ZNode(operation.data, Stat(0, zxid, zxid, int(self.loop.now * 1000), owner))
            return path
        node = find(path)
        if node is None:
            raise exceptions.NoNodeError
        if operation.version not in (-1, node.stat.version):
            raise exceptions.BadVersionError
        if operation.kind == "set":
            stat = node.stat._replace(version=node.stat.version + 1, mzxid=zxid)
            changes[path] = node._replace(data=operation.data, stat=stat)
            return stat
        if operation.kind == "delete":
            prefix = path + "/"
            below = {name for name in (*self.nodes, *changes) if name.startswith(prefix)}
            if any(find(name) is not None for name in below):
                raise exceptions.NotEmptyError
            changes[path] = None
        return True

    def _commit(self, changes: Changes) -> None:
        self.zxid += 1
        _write(self.nodes, changes)
        for server in self.servers:
            server.replicate(self.zxid, changes)
        self.committed(changes)


def _write(nodes: dict[str, ZNode], changes: Changes) -> None:
    for path, node in changes.items():
        if node is None:
            nodes.pop(path, None)
        else:
            nodes[path] = node


class Server:
    """One server, which applies the transactions with a delay."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self.nodes = dict(ensemble.nodes)
        self.zxid = 0
        self.connections: dict[Connection, None] = {}
        self._applies_at = 0.0
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def accept(self, end: End) -> None:
        self.connections[Connection(self, end)] = None

    def replicate(self, zxid: int, changes: Changes) -> None:
        ensemble = self.ensemble
        is_slow = ensemble.random.random() < ensemble.slow_servers
        delay = ensemble.random.uniform(0.0, 0.3 if is_slow else 0.003)
        self._applies_at = max(self._applies_at + INSTANT_S, ensemble.loop.now + delay)
        ensemble.loop.call_at(self._applies_at, self._apply, zxid, changes, context=ensemble.process.context)

    def _apply(self, zxid: int, changes: Changes) -> None:
        fired = []
        for path, node in changes.items():
            before = self.nodes.get(path)
            is_same = before is not None and node is not None and before.stat == node.stat
            if not is_same:
                fired.append(Event("data", path))
            if (before is None) != (node is None):
                fired.append(Event("children", parent_of(path)))
            if node is None:
                fired.append(Event("children", path))
        _write(self.nodes, changes)
        self.zxid = zxid
        for connection in tuple(self.connections):
            connection.fire(fired)
        waiting, self._waiting = self._waiting, []
        for wanted, callback in waiting:
            self.when(wanted, callback)

    def when(self, zxid: int, callback: Callable[[], None]) -> None:
        """Call back when the transaction has been applied."""
        if zxid <= self.zxid:
            callback()
        else:
            self._waiting.append((zxid, callback))


class Connection:
    """The server's end of a client's connection."""

    def __init__(self, server: Server, end: End) -> None:
        self._server = server
        self._end = end
        self._session: Session | None = None
        self._requests: deque[Request] = deque()
        self._is_busy = False
        self._is_closed = False
        self._watches: set[Event] = set()
        end.receive, end.lost = self._receive, self._lost

    def close(self) -> None:
        self._end.abort()
        self._lost(None)

    def _lost(self, _: Exception | None) -> None:
        self._is_closed = True
        self._server.connections.pop(self, None)
        if self._session is not None and self._session.connection is self:
            self._session.connection = None

    def fire(self, events: Sequence[Event]) -> None:
        for event in events:
            if event in self._watches:
                self._watches.discard(event)
                self._end.send(event)

    def _receive(self, message: Any) -> None:
        ensemble = self._server.ensemble
        if self._is_closed:
            return
        if isinstance(message, Connect):
            if message.zxid > self._server.zxid:
                self.close()  # the client has seen more than this server
                return
            self._session = ensemble.attach(self, message)
            self._end.send(Connected(0 if self._session is None else self._session.id))
            return
        if self._session is None or self._session.connection is not self:
            self.close()
            return
        ensemble.heard(self._session)
        if isinstance(message, Request):
            self._requests.append(message)
            self._next()
        else:
            self._end.send(PING)

    def _next(self) -> None:
        """Handle requests in order: a read waits for the session's earlier writes."""
        while self._requests and not self._is_busy and not self._is_closed:
            request = self._requests.popleft()
            if request.kind == "close":
                if self._session is not None:
                    self._server.ensemble.expire(self._session)
            elif request.kind == "multi":
                self._is_busy = True
                ensemble = self._server.ensemble
                ensemble.loop.call_later(ensemble.random.uniform(0.0, 0.003), self._write, request)
            elif request.kind == "sync":
                self._is_busy = True
                self._server.when(self._server.ensemble.zxid, lambda: self._answer(True))
            else:
                self._read(request)

    def _write(self, request: Request) -> None:
        session, ensemble = self._session, self._server.ensemble
        if self._is_closed or session is None or session.connection is not self or session.id not in ensemble.sessions:
            return
        results = ensemble.execute(session, request.operations)
        self._server.when(ensemble.zxid, lambda: self._answer(results))

    def _answer(self, value: Any) -> None:
        self._is_busy = False
        self._end.send(Reply(self._server.zxid, value, None))
        self._next()

    def _read(self, request: Request) -> None:
        nodes, path = self._server.nodes, request.path
        node = nodes.get(path)
        if request.watch and (request.kind == "exists" or node is not None):
            self._watches.add(Event("children" if request.kind == "children" else "data", path))
        value: Any = None
        error: Exception | None = None
        if request.kind == "exists":
            value = None if node is None else node.stat
        elif request.kind == "get_many":
            found = [nodes.get(name) for name in request.paths]
            value = [None if item is None else (item.data, item.stat) for item in found]
        elif node is None:
            error = exceptions.NoNodeError()
        elif request.kind == "get":
            value = (node.data, node.stat)
        else:
            value = children_of(nodes, path)
        self._end.send(Reply(self._server.zxid, value, error))


# The client


class Result:
    """The part of kazoo's AsyncResult that the store uses."""

    def __init__(self) -> None:
        self.value: Any = None
        self.exception: Exception | None = None
        self._links: list[Callable[[Result], None]] = []
        self._is_done = False

    def rawlink(self, callback: Callable[["Result"], None]) -> None:
        if self._is_done:
            callback(self)
        else:
            self._links.append(callback)

    def finish(self, value: Any, error: Exception | None) -> None:
        self.value, self.exception, self._is_done = value, error, True
        for callback in self._links:
            callback(self)


class Sent(NamedTuple):
    request: Request
    result: Result
    watch: Callable[[Any], None] | None


@dataclass
class Transaction:
    """Kazoo's builder of a multi."""

    client: "Client"
    operations: list[Operation] = field(default_factory=list)

    def create(self, path: str, data: bytes, *, ephemeral: bool, sequence: bool) -> None:
        self.operations.append(Operation("create", path, data, ephemeral=ephemeral, sequential=sequence))

    def set_data(self, path: str, data: bytes, version: int) -> None:
        self.operations.append(Operation("set", path, data, version))

    def delete(self, path: str, version: int) -> None:
        self.operations.append(Operation("delete", path, version=version))

    def check(self, path: str, version: int) -> None:
        self.operations.append(Operation("check", path, version=version))

    def commit_async(self) -> Result:
        return self.client.call(Request("multi", "/", operations=tuple(self.operations)))


class Client:
    """A client in the current process, which reconnects for ever, as kazoo does."""

    def __init__(self, ensemble: Ensemble, timeout_s: float) -> None:
        self._ensemble = ensemble
        self._loop = ensemble.loop
        self._timeout_s = timeout_s
        self.chroot = ""
        self.handler = self
        self.last_zxid = 0
        self.client_id = (0, b"")
        self._listener: Callable[[str], None]
        self._end: End | None = None
        """The connection, after the session has been established on it."""
        self._queue: deque[Sent] = deque()
        self._pending: deque[Sent] = deque()
        self._watchers: dict[Event, list[Callable[[Any], None]]] = {}
        self._task: asyncio.Task[None] | None = None

    def add_listener(self, listener: Callable[[str], None]) -> None:
        self._listener = listener

    def start_async(self) -> None:
        self._task = self._loop.create_task(self._run())

    def stop(self) -> None:
        if self._end is not None:
            self._end.send(Request("close", "/"))
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        """Release nothing."""

    # Requests

    def get_async(self, path: str) -> Result:
        return self.call(Request("get", path))

    def exists_async(self, path: str, watch: Callable[[Any], None] | None = None) -> Result:
        return self.call(Request("exists", path, watch is not None), watch)

    def get_children_async(self, path: str, watch: Callable[[Any], None] | None = None) -> Result:
        return self.call(Request("children", path, watch is not None), watch)

    def sync_async(self, path: str) -> Result:
        return self.call(Request("sync", path))

    def transaction(self) -> Transaction:
        return Transaction(self)

    def async_result(self) -> Result:
        """Return what kazoo's handler would."""
        return Result()

    def _call(self, request: ReadMany, result: Result) -> None:
        self._enqueue(Sent(Request("get_many", "/", paths=request.paths), result, None))

    def call(self, request: Request, watch: Callable[[Any], None] | None = None) -> Result:
        sent = Sent(request, Result(), watch)
        self._enqueue(sent)
        return sent.result

    def _enqueue(self, sent: Sent) -> None:
        if self._end is None:
            self._queue.append(sent)
        else:
            self._send(self._end, sent)

    def _send(self, end: End, sent: Sent) -> None:
        self._pending.append(sent)
        end.send(sent.request)

    # The connection

    async def _run(self) -> None:
        pause = 0.0
        while True:
            await asyncio.sleep(pause)
            pause = min(max(2 * pause, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            try:
                end = await self._ensemble.network.dial(_ADDRESS)
            except ConnectionRefusedError:
                continue
            if await self._use(end):
                pause = 0.0
            end.abort()

    async def _use(self, end: End) -> bool:
        """Use a connection until it is lost. Return True if the session was established, or has expired."""
        loop = self._loop
        inbox: asyncio.Queue[Any] = asyncio.Queue()
        end.receive = inbox.put_nowait
        end.lost = lambda _: inbox.put_nowait(None)
        end.send(Connect(self.client_id[0], self.last_zxid, self._timeout_s))
        was_connected = False
        heard = loop.time()
        ping_at = heard + self._timeout_s / 3
        while True:
            try:
                async with asyncio.timeout_at(ping_at):
                    message = await inbox.get()
            except TimeoutError:
                if loop.time() - heard > self._timeout_s * 2 / 3:
                    break
                end.send(PING)
                ping_at = loop.time() + self._timeout_s / 3
                continue
            if message is None:
                break
            heard = loop.time()
            if isinstance(message, Connected):
                was_connected = True
                if not message.session:
                    self._expired()
                    return True
                self._begin(end, message.session)
            elif isinstance(message, Reply):
                self._replied(message)
            elif isinstance(message, Event):
                self._fire(self._watchers.pop(message, []))
        if was_connected:
            self._end = None
            self._fail(exceptions.ConnectionLoss)
            self._listener(KazooState.SUSPENDED)
            self._reset_watchers()
        return was_connected

    def _begin(self, end: End, session: int) -> None:
        self.client_id = (session, b"")
        self._end = end
        self._listener(KazooState.CONNECTED)
        queue, self._queue = self._queue, deque()
        for sent in queue:
            self._send(end, sent)

    def _expired(self) -> None:
        self._end = None
        self._listener(KazooState.LOST)
        self._fail(exceptions.SessionExpiredError)
        self._reset_watchers()
        self.client_id = (0, b"")
        self.last_zxid = 0

    def _replied(self, reply: Reply) -> None:
        sent = self._pending.popleft()
        self.last_zxid = max(self.last_zxid, reply.zxid)
        if sent.watch is not None and reply.error is None:
            kind = "children" if sent.request.kind == "children" else "data"
            self._watchers.setdefault(Event(kind, sent.request.path), []).append(sent.watch)
        sent.result.finish(reply.value, reply.error)

    def _fail(self, error: type[Exception]) -> None:
        """Fail all requests: those that were sent may have been executed."""
        failed = [*self._pending, *self._queue]
        self._pending.clear()
        self._queue.clear()
        for sent in failed:
            sent.result.finish(None, error())

    def _reset_watchers(self) -> None:
        """Call all watchers, as kazoo does when the connection is lost."""
        watchers, self._watchers = self._watchers, {}
        for callbacks in watchers.values():
            self._fire(callbacks)

    @staticmethod
    def _fire(callbacks: Sequence[Callable[[Any], None]]) -> None:
        for callback in callbacks:
            callback(None)
