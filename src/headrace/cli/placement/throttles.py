"""The settings that limit the rate of moves, as Kafka's tool sets them (KIP-73). Pure."""

import re
from collections.abc import Sequence
from typing import Final

from headrace.cli.failures import usage_error
from headrace.cli.placement.plan import Move

RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
"""Settings of a broker, in bytes per second."""
LEADERS: Final = "leader.replication.throttled.replicas"
FOLLOWERS: Final = "follower.replication.throttled.replicas"
REPLICAS: Final = (LEADERS, FOLLOWERS)
"""Settings of a topic: the replicas that the rates apply to, as 'partition:broker'."""
_UNITS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_HIGHEST: Final = 2**63 - 1


def parse_rate(text: str, option: str) -> int:
    """Parse bytes per second: '1000000', '512KB' or '50MB', in powers of 1024. Raises CommandError."""
    found = re.fullmatch(r"(\d{1,99}(?:\.\d+)?)\s*([kmg]?)(?:i?b)?(?:/s)?", text.strip().lower())
    rate = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    if not 0 < rate <= _HIGHEST:
        raise usage_error(f"{option} '{text}' is not a rate", "Use bytes per second, for example 50MB or 1000000.")
    return rate


def brokers(moves: Sequence[Move]) -> list[int]:
    """Return the brokers that may send or receive data in these moves."""
    return sorted({broker for move in moves if move.added for broker in (*move.before, *move.after)})


def topic_settings(moves: Sequence[Move]) -> dict[str, dict[str, str]]:
    """Return the settings of every topic with new replicas.

    Leaders are throttled on all brokers that have a replica, because the leader may change during the move.
    """
    topics: dict[str, dict[str, set[tuple[int, int]]]] = {}
    for move in moves:
        if move.added:
            found = topics.setdefault(move.topic, {LEADERS: set(), FOLLOWERS: set()})
            found[LEADERS] |= {(move.partition, broker) for broker in move.before}
            found[FOLLOWERS] |= {(move.partition, broker) for broker in move.added}
    return {
        topic: {
            name: ",".join(f"{partition}:{broker}" for partition, broker in sorted(replicas))
            for name, replicas in found.items()
        }
        for topic, found in sorted(topics.items())
    }
