"""Assign replicas of new partitions to brokers. Pure: the caller provides the randomness."""

from collections.abc import Collection, Mapping, Sequence
from random import Random

from headrace.errors import ErrorCode, KafkaError


def place(
    brokers: Mapping[int, str | None],
    partitions: int,
    replication_factor: int,
    random: Random,
    *,
    first_partition: int = 0,
) -> list[tuple[int, ...]]:
    """Return the replicas of every new partition, the preferred leader first. `brokers` maps ids to racks.

    Leaders are assigned round-robin from a random broker. The followers' distance from the leader grows with every
    round, so that the load of a failed broker spreads over all others. If all brokers have racks, every partition is
    spread over as many racks as possible.

    Raises KafkaError(INVALID_REPLICATION_FACTOR) if there are fewer brokers than replicas.
    """
    count = len(brokers)
    if replication_factor > count:
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {replication_factor} time(s): only {count} broker(s) are registered.",
        )
    racks = {broker: rack for broker, rack in brokers.items() if rack is not None}
    order = _alternating(racks) if len(racks) == count else sorted(brokers)
    distinct = len(set(racks.values())) if len(racks) == count else 1
    start, shift = random.randrange(count), random.randrange(count)
    placed = []
    for partition in range(first_partition, first_partition + partitions):
        if partition > first_partition and partition % count == 0:
            shift += 1
        leader = (partition + start) % count
        replicas = [order[leader]]
        step = 0
        while len(replicas) < replication_factor:
            other = order[(leader + 1 + (shift * distinct + step) % (count - 1)) % count]
            step += 1
            used = {racks[replica] for replica in replicas} if distinct > 1 else set()
            if other not in replicas and (distinct <= len(used) or distinct == 1 or racks[other] not in used):
                replicas.append(other)
        placed.append(tuple(replicas))
    return placed


def _alternating(racks: Mapping[int, str]) -> list[int]:
    """Order brokers so that neighbours are in different racks where possible."""
    waiting: dict[str, list[int]] = {}
    for broker in sorted(racks, key=lambda broker: (racks[broker], broker)):
        waiting.setdefault(racks[broker], []).append(broker)
    order = []
    while any(waiting.values()):
        order += [brokers.pop(0) for brokers in waiting.values() if brokers]
    return order


def check_manual(
    replicas: Sequence[int], brokers: Collection[int], replication_factor: int | None = None
) -> tuple[int, ...]:
    """Check replicas that a client assigns to a partition, and return them.

    `replication_factor` is that of the other partitions. Raises KafkaError(INVALID_REPLICA_ASSIGNMENT).
    """
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
