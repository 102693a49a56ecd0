"""Writes of one controller. Each write checks that no other broker has become controller in the meantime."""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from headrace.cluster import znodes
from headrace.cluster.membership.registration import WatchedStore
from headrace.cluster.offices.tree_reader import TreeReader
from headrace.cluster.store import (
    BadVersionError,
    Check,
    Create,
    Delete,
    NoNodeError,
    NotEmptyError,
    Operation,
    StoreError,
)

_MAX_OPERATIONS: Final = 200
_MAX_BYTES: Final = 500_000
"""Limits of one request: ZooKeeper refuses 1 MB (jute.maxbuffer)."""
_OPERATION_BYTES: Final = 100
_ATTEMPTS: Final = 5


class DeposedError(Exception):
    """Another broker has become controller."""


class FencedStore:
    """Writes of a controller. They raise DeposedError unless the controller epoch's node has `epoch_version`."""

    def __init__(self, store: WatchedStore, epoch_version: int) -> None:
        self._store = store
        self._fence = Check(znodes.CONTROLLER_EPOCH, epoch_version)
        self._reader = TreeReader(store)

    async def write(self, operations: Sequence[Operation], parents: Sequence[str] = ()) -> None:
        """Write, in order, in as few requests as possible; create missing `parents` first. Raises StoreError."""
        found = await self._store.get_many(parents) if parents else []
        missing = [Create(path) for path, node in zip(parents, found, strict=True) if node is None]
        for result in await self._store.multi_many([(self._fence, *part) for part in _parts([*missing, *operations])]):
            if isinstance(result, StoreError):
                self._raise(result)

    async def remove(self, *groups: Iterable[str]) -> None:
        """Delete each group of nodes, with everything below them.

        A group's nodes are deleted in order. If one request cannot hold them all, the last request is full, so that
        the last nodes are deleted together. Missing nodes are ignored. Raises StoreError.
        """
        left = [tuple(paths) for paths in groups]
        for attempt in range(1, _ATTEMPTS + 1):
            found = await asyncio.gather(*(self._below(paths) for paths in left))
            parts = [_parts([Delete(node) for node in nodes]) for nodes in found]
            batches = [(self._fence, *part) for of_group in parts for part in of_group]
            results = iter(await self._store.multi_many(batches))
            again = []
            for paths, of_group in zip(left, parts, strict=True):
                errors = [result for result in islice(results, len(of_group)) if isinstance(result, StoreError)]
                for error in errors:  # another process may have written below them
                    if not isinstance(error, (NoNodeError, NotEmptyError)) or attempt == _ATTEMPTS:
                        self._raise(error)
                if errors:
                    again.append(paths)
            if not again:
                return
            left = again

    async def _below(self, paths: Iterable[str]) -> list[str]:
        parts = await asyncio.gather(*map(self._reader.below, paths))
        return [node for part in parts for node in part]

    def _raise(self, error: StoreError) -> None:
        if isinstance(error, BadVersionError) and error.path == znodes.CONTROLLER_EPOCH:
            raise DeposedError from error
        raise error


def _parts(operations: Sequence[Operation]) -> list[Sequence[Operation]]:
    """Split operations into requests that ZooKeeper accepts, filled from the end: the last operations stay together."""
    parts: list[list[Operation]] = []
    size = 0
    for operation in reversed(operations):
        bytes_of = _OPERATION_BYTES + len(operation.path) + len(getattr(operation, "data", b""))
        if not parts or len(parts[-1]) == _MAX_OPERATIONS or size + bytes_of > _MAX_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(operation)
        size += bytes_of
    return [part[::-1] for part in reversed(parts)]
