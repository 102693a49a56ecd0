"""The store interface on a real ZooKeeper, through kazoo."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from headrace.cluster.store import (
    ANY_VERSION,
    BadVersionError,
    Check,
    Create,
    Delete,
    Done,
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

_REFUSALS: Final[dict[type[Exception], type[StoreError]]] = {
    kazoo_errors.NoNodeError: NoNodeError,
    kazoo_errors.NodeExistsError: NodeExistsError,
    kazoo_errors.BadVersionError: BadVersionError,
    kazoo_errors.NotEmptyError: NotEmptyError,
    kazoo_errors.NoChildrenForEphemeralsError: StoreError,
}
_START_TIMEOUT_S: Final = 60.0
"""A server that has just started may need seconds on a busy machine."""
_CONSEQUENTIAL: Final = (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)
"""The results of the operations before and after the one that failed."""


class ZooKeeperStore:
    """A session. `address` is HOST:PORT followed by the path of the store's root."""

    def __init__(self, address: str) -> None:
        self._client: Any = KazooClient(hosts=address, timeout=10.0)

    async def start(self) -> None:
        try:
            await asyncio.to_thread(self._client.start, _START_TIMEOUT_S)
        except KazooTimeoutError as error:
            raise StoreUnavailableError(",".join(map(str, self._client.hosts)), str(error)) from error

    @property
    def session(self) -> int:
        session: int = self._client.client_id[0]
        return session

    async def get(self, path: str) -> Node:
        return _node(await _answer(path, self._client.get_async(path)))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        pending = [(path, self._client.get_async(path)) for path in paths]
        nodes: list[Node | None] = []
        for path, answer in pending:
            try:
                nodes.append(_node(await _answer(path, answer)))
            except NoNodeError:
                nodes.append(None)
        return nodes

    async def exists(self, path: str) -> Stat | None:
        found = await _answer(path, self._client.exists_async(path))
        return None if found is None else _stat(found)

    async def children(self, path: str) -> list[str]:
        return sorted(await _answer(path, self._client.get_children_async(path)))

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        (done,) = await self.multi((Create(path, data, ephemeral, sequential),))
        return done.path

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        return _stat(await _answer(path, self._client.set_async(path, data, version)))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await _answer(path, self._client.delete_async(path, version))

    async def multi(self, operations: Sequence[Operation]) -> list[Done]:
        (result,) = await self.multi_many((operations,))
        if isinstance(result, StoreError):
            raise result
        return result

    async def multi_many(self, batches: Sequence[Sequence[Operation]]) -> list[list[Done] | StoreError]:
        pending = [(operations, self._commit(operations)) for operations in batches]
        return [await self._outcome(operations, answer) for operations, answer in pending]

    async def close(self) -> None:
        await asyncio.to_thread(self._client.stop)
        self._client.close()

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

    async def _outcome(self, operations: Sequence[Operation], answer: Any) -> list[Done] | StoreError:
        try:
            results = await _answer(operations[0].path if operations else "/", answer)
        except StoreError as error:
            return error
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, Exception) and not isinstance(result, _CONSEQUENTIAL):
                return _failure(operation.path, result)
        return [
            Done(result if isinstance(operation, Create) else operation.path, _stat_of(operation, result))
            for operation, result in zip(operations, results, strict=True)
        ]


async def _answer(path: str, answer: Any) -> Any:
    """Await the result of a kazoo request, which arrives in another thread. Raises StoreError."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    answer.rawlink(lambda _: loop.call_soon_threadsafe(done.set))
    await done.wait()
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
