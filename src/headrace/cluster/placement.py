"""Assign replicas of new partitions to brokers. Pure: the caller provides the randomness."""

from collections.abc import Collection, Sequence
from random import Random

from headrace.errors import ErrorCode, KafkaError


def place(
    brokers: Collection[int], partitions: int, replication_factor: int, random: Random, *, first_partition: int = 0
) -> list[tuple[int, ...]]:
    """Return the replicas of every new partition, the preferred leader first.

    Leaders are assigned round-robin from a random broker. The followers' distance from the leader grows with every
    round, so that the load of a failed broker spreads over all others. Raises KafkaError(INVALID_REPLICATION_FACTOR)
    with fewer brokers than replicas.
    """
    count = len(brokers)
    if replication_factor > count:
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {replication_factor} time(s): only {count} broker(s) are registered.",
        )
    order = sorted(brokers)
    start, shift = random.randrange(count), random.randrange(count)
    placed = []
    for partition in range(first_partition, first_partition + partitions):
        if partition > first_partition and partition % count == 0:
            shift += 1
        leader = (partition + start) % count
        others = ((leader + 1 + (shift + step) % (count - 1)) % count for step in range(replication_factor - 1))
        placed.append((order[leader], *(order[other] for other in others)))
    return placed


def check_manual(
    replicas: Sequence[int], brokers: Collection[int], replication_factor: int | None = None
) -> tuple[int, ...]:
    """Return a partition's replicas as assigned by a client; raises KafkaError(INVALID_REPLICA_ASSIGNMENT)."""
    if not replicas:
        raise _invalid("The manual partition assignment includes an empty replica list.")
    for broker in sorted(replicas):
        if broker not in brokers:
            raise _invalid(f"The manual partition assignment includes broker {broker}, which is not registered.")
        if replicas.count(broker) > 1:
            raise _invalid(f"The manual partition assignment includes broker {broker} more than once.")
    if replication_factor is not None and len(replicas) != replication_factor:
        raise _invalid(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), "
            f"but others have {replication_factor}."
        )
    return tuple(replicas)


def _invalid(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_replica_assignment, reason)
