"""The states of partitions and replicas, and the transitions between them, as Kafka's controller has them. Pure."""

from enum import Enum, auto
from typing import Final


class PartitionPhase(Enum):
    """The phases of a partition."""

    NON_EXISTENT = auto()
    """action: none. transition: from OFFLINE when its topic is deleted; also the initial phase."""
    NEW = auto()
    """action: it has replicas, but no leader yet. transition: from NON_EXISTENT."""
    ONLINE = auto()
    """action: its leader is alive. transition: by an election, from all other phases but NON_EXISTENT."""
    OFFLINE = auto()
    """action: its leader is dead. transition: when the leader dies, or the deletion of its topic begins."""


class ReplicaPhase(Enum):
    """The phases of a replica."""

    NON_EXISTENT = auto()
    """action: none. transition: from DELETION_SUCCESSFUL; also the initial phase."""
    NEW = auto()
    """action: it may only follow. transition: from NON_EXISTENT."""
    ONLINE = auto()
    """action: it leads or follows. transition: when its broker has started, or it is assigned."""
    OFFLINE = auto()
    """action: it is out of the ISR and stopped. transition: when its broker dies or stops, or its deletion begins."""
    DELETION_STARTED = auto()
    """action: its broker deletes the log. transition: from OFFLINE."""
    DELETION_SUCCESSFUL = auto()
    """action: its log is deleted. transition: from DELETION_STARTED, by the broker's reply."""
    DELETION_INELIGIBLE = auto()
    """action: its deletion waits for the broker or the directory. transition: from OFFLINE and DELETION_STARTED."""


PARTITION_BEFORE: Final = {
    PartitionPhase.NON_EXISTENT: {PartitionPhase.OFFLINE},
    PartitionPhase.NEW: {PartitionPhase.NON_EXISTENT},
    PartitionPhase.ONLINE: {PartitionPhase.NEW, PartitionPhase.ONLINE, PartitionPhase.OFFLINE},
    PartitionPhase.OFFLINE: {PartitionPhase.NEW, PartitionPhase.ONLINE, PartitionPhase.OFFLINE},
}
"""The phases from which a partition may enter each phase."""

REPLICA_BEFORE: Final = {
    ReplicaPhase.NON_EXISTENT: {ReplicaPhase.DELETION_SUCCESSFUL},
    ReplicaPhase.NEW: {ReplicaPhase.NON_EXISTENT},
    ReplicaPhase.ONLINE: {
        ReplicaPhase.NEW,
        ReplicaPhase.ONLINE,
        ReplicaPhase.OFFLINE,
        ReplicaPhase.DELETION_INELIGIBLE,
    },
    ReplicaPhase.OFFLINE: {
        ReplicaPhase.NEW,
        ReplicaPhase.ONLINE,
        ReplicaPhase.OFFLINE,
        ReplicaPhase.DELETION_INELIGIBLE,
    },
    ReplicaPhase.DELETION_STARTED: {ReplicaPhase.OFFLINE},
    ReplicaPhase.DELETION_SUCCESSFUL: {ReplicaPhase.DELETION_STARTED},
    ReplicaPhase.DELETION_INELIGIBLE: {ReplicaPhase.OFFLINE, ReplicaPhase.DELETION_STARTED},
}
"""The phases from which a replica may enter each phase."""
