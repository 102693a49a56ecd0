"""A metadata store with watches, as other processes would see it."""

from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.cluster.store import Done, Node, NoNodeError, Operation, StoreError
from headrace.cluster.stores.embedded import EmbeddedStore


class WatchedMemory(EmbeddedStore):
    """A store whose writes call the watchers of the node, and of its parent's children, once."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, durable=False)
        self._watchers: list[tuple[str, Callable[[], None]]] = []

    async def multi(self, operations: Sequence[Operation]) -> list[Done]:
        done = await super().multi(operations)
        self._written(operations)
        return done

    async def multi_many(self, batches: Sequence[Sequence[Operation]]) -> list[list[Done] | StoreError]:
        results = await super().multi_many(batches)
        for operations, result in zip(batches, results, strict=True):
            if not isinstance(result, StoreError):
                self._written(operations)
        return results

    async def watched(self, path: str, changed: Callable[[], None]) -> Node | None:
        self._watchers.append((path, changed))
        try:
            return await self.get(path)
        except NoNodeError:
            return None

    async def watched_children(self, path: str, changed: Callable[[], None]) -> list[str]:
        names = await self.children(path)
        self._watchers.append((f"{path}/", changed))
        return names

    def forget_watches(self) -> None:
        """Drop all watches, as a lost connection does."""
        self._watchers.clear()

    def _written(self, operations: Sequence[Operation]) -> None:
        changed = {operation.path for operation in operations}
        changed |= {f"{path.rpartition('/')[0]}/" for path in changed}
        for watcher in [watcher for watcher in self._watchers if watcher[0] in changed]:
            self._watchers.remove(watcher)
            watcher[1]()
