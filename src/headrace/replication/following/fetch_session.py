"""The follower's side of an incremental fetch session (KIP-227): requests contain only changed partitions. Pure."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from headrace.errors import ErrorCode
from headrace.wire.fetched import PartitionKey

_NO_SESSION: Final = 0
_FULL: Final = 0
"""The epoch of a request that contains all partitions and begins a session."""
_LAST_EPOCH: Final = 2**31 - 1


class SessionRequest(NamedTuple):
    """The parts of a request that depend on the session."""

    session: tuple[int, int]
    entries: Mapping[PartitionKey, bytes]
    forgotten: list[PartitionKey]


class FetchSession:
    """One session with one leader. `wanted` has the packed entries of the partitions to fetch."""

    __slots__ = ("_epoch", "_id", "_known", "_touched", "wanted")

    def __init__(self) -> None:
        self.wanted: dict[PartitionKey, bytes] = {}
        self._known: dict[PartitionKey, bytes] = {}
        """The entries that earlier requests have sent to the leader."""
        self._touched: dict[PartitionKey, None] = {}
        self._id = _NO_SESSION
        self._epoch = _FULL

    def want(self, key: PartitionKey, entry: bytes) -> None:
        """Add or update a partition, with the packed `entry` for the next request."""
        self.wanted[key] = entry
        self._touched[key] = None

    def leave(self, key: PartitionKey) -> None:
        """Remove a partition."""
        if self.wanted.pop(key, None) is not None:
            self._touched[key] = None

    def is_current(self, key: PartitionKey) -> bool:
        """Return True if the leader has the partition's newest entry."""
        entry = self._known.get(key)
        return entry is not None and entry == self.wanted.get(key)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to fetch and nothing for the leader to forget."""
        return not self.wanted and (self._epoch == _FULL or not self._known)

    def next_request(self) -> SessionRequest:
        """Return the next request. Its outcome is `answered` or `failed`."""
        if self._epoch == _FULL:
            self._known = dict(self.wanted)
            self._touched.clear()
            return SessionRequest((self._id, _FULL), self._known, [])
        changed: dict[PartitionKey, bytes] = {}
        forgotten: list[PartitionKey] = []
        for key in self._touched:
            entry = self.wanted.get(key)
            if entry is None:
                if self._known.pop(key, None) is not None:
                    forgotten.append(key)
            elif self._known.get(key) != entry:
                self._known[key] = changed[key] = entry
        self._touched.clear()
        return SessionRequest((self._id, self._epoch), changed, forgotten)

    def answered(self, session_id: int, error_code: int) -> bool:
        """Handle a reply with this session id. Return False if the session is lost; such a reply has no partitions."""
        if error_code != ErrorCode.none:
            if error_code == ErrorCode.fetch_session_id_not_found:
                self._id = _NO_SESSION
            self._epoch = _FULL
            return False
        if session_id == _NO_SESSION:
            self._id, self._epoch = _NO_SESSION, _FULL
        elif self._epoch == _FULL:
            self._id, self._epoch = session_id, 1
        else:
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1
        return True

    def failed(self) -> None:
        """Record that the reply was lost: the next request replaces the session."""
        self._epoch = _FULL
