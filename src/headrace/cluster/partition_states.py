"""The replicas and the leader of a partition, as the controller reads and writes them. Pure values."""

from collections.abc import Iterable
from typing import NamedTuple


class Assignment(NamedTuple):
    """The replicas of a partition, including those that a reassignment is `adding` and `removing` (KIP-455)."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def origin(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas if replica not in self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    def reassigned_to(self, target: Iterable[int]) -> "Assignment":
        """Return the assignment during a reassignment to `target`, in place of any that is in progress."""
        target, origin = tuple(target), self.origin
        replicas = tuple(dict.fromkeys((*target, *origin)))
        return Assignment(
            replicas,
            tuple(replica for replica in replicas if replica not in origin),
            tuple(replica for replica in replicas if replica not in target),
        )

    def without(self, broker: int) -> "Assignment":
        return Assignment(*(tuple(replica for replica in part if replica != broker) for part in self))


class LeaderState(NamedTuple):
    """The leader and the in-sync replicas of a partition, as in its state node."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    version: int
    """The version of the node, which is the partition epoch."""
    controller_epoch: int
    """The epoch of the controller that wrote it."""
    recovery: int = 0
    """1 while the partition recovers from an unclean election (KIP-704)."""
    zxid: int = -1
    """The transaction that wrote it; -1 if this controller did."""

    def elected(self, leader: int, isr: tuple[int, ...], *, recovery: int | None = None) -> "LeaderState":
        """Return the state under the next leader epoch. The version and the controller's epoch follow when written."""
        return self._replace(
            leader=leader,
            leader_epoch=self.leader_epoch + 1,
            isr=isr,
            recovery=self.recovery if recovery is None else recovery,
        )
