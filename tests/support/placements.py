"""Build clusters for tests of plans from a short notation."""

from collections.abc import Iterable, Mapping, Sequence

from headrace.cli.placement.state import Broker, Partition, Place, State


def partition(
    topic: str,
    number: int,
    replicas: Sequence[int],
    isr: Sequence[int] | None = None,
    *,
    leader: int | None = -1,
    adding: Sequence[int] = (),
    removing: Sequence[int] = (),
    min_isr: int | None = None,
) -> Partition:
    """Return a partition; by default all replicas are in sync, and the first one in sync leads."""
    isr = replicas if isr is None else isr
    if leader == -1:
        leader = isr[0] if isr else None
    return Partition(
        topic, number, leader, 0, tuple(replicas), tuple(isr), tuple(adding), tuple(removing), min_isr=min_isr
    )


def state(
    brokers: Mapping[int, str | None] | Iterable[int],
    partitions: Iterable[Partition],
    *,
    replica_sizes: Mapping[tuple[Place, int], int] | None = None,
) -> State:
    """Return a cluster; `brokers` may have racks."""
    racks = brokers if isinstance(brokers, Mapping) else dict.fromkeys(brokers)
    return State(
        "cluster",
        min(racks, default=None),
        None,
        {broker: Broker(broker, f"host:{broker}", rack, None) for broker, rack in sorted(racks.items())},
        {one.place: one for one in partitions},
        replica_sizes or {},
    )
