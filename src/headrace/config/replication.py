"""Broker settings about replication, the controller, quotas and ZooKeeper.

Names, types, limits and defaults are Kafka's; see https://kafka.apache.org/documentation/#brokerconfigs (and, for
zookeeper.*, the documentation of Kafka 3.9).
"""

from typing import Final

from headrace.config.definition import (
    BOOLEAN,
    CLUSTER_WIDE,
    HIGH,
    INT,
    LONG,
    LOW,
    STRING,
    Setting,
    at_least,
    table,
)

REPLICATION_SETTINGS: Final[dict[str, Setting]] = table(
    # Followers
    Setting(
        "num.replica.fetchers",
        INT,
        1,
        "Fetchers for each broker that this one follows.",
        at_least(1),
        importance=HIGH,
        update=CLUSTER_WIDE,
    ),
    Setting(
        "replica.fetch.min.bytes",
        INT,
        1,
        "Fewest bytes for which a leader answers a follower's fetch at once.",
        importance=HIGH,
    ),
    Setting("replica.fetch.max.bytes", INT, 1_048_576, "Bytes that a follower asks of one partition.", at_least(0)),
    Setting(
        "replica.fetch.response.max.bytes",
        INT,
        10_485_760,
        "Bytes that a follower asks of all partitions together.",
        at_least(0),
    ),
    Setting(
        "replica.fetch.wait.max.ms",
        INT,
        500,
        "Longest time in ms that a leader lets a follower's fetch wait; less than replica.lag.time.max.ms.",
        importance=HIGH,
    ),
    Setting(
        "replica.fetch.backoff.ms", INT, 1000, "Time in ms that a follower waits after a failed fetch.", at_least(0)
    ),
    Setting(
        "replica.lag.time.max.ms",
        LONG,
        30_000,
        "Time in ms without having caught up after which a follower leaves the in-sync set.",
        importance=HIGH,
    ),
    Setting(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        5000,
        "Time in ms between two writings of the high watermarks.",
        importance=HIGH,
    ),
    Setting(
        "replica.socket.timeout.ms",
        INT,
        30_000,
        "Time in ms that a follower waits for an answer.",
        importance=HIGH,
    ),
    Setting(
        "replica.socket.receive.buffer.bytes",
        INT,
        65_536,
        "Receive buffer of a follower's socket in bytes.",
        importance=HIGH,
    ),
    Setting(
        "replica.selector.class",
        STRING,
        None,
        "How a consumer's nearest replica is chosen (KIP-392): empty for always the leader, or the name of Kafka's "
        "RackAwareReplicaSelector.",
    ),
    # Controller
    Setting(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        True,
        "Whether leadership goes back to preferred replicas by itself.",
        importance=HIGH,
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        LONG,
        300,
        "Time in seconds between two looks for partitions that their preferred replica does not lead.",
        at_least(1),
        importance=HIGH,
    ),
    Setting(
        "leader.imbalance.per.broker.percentage",
        INT,
        10,
        "Share of a broker's partitions, in percent, led by others, above which leadership is moved back.",
        importance=HIGH,
    ),
    Setting(
        "controlled.shutdown.enable",
        BOOLEAN,
        True,
        "Whether a broker hands its partitions to others before it stops.",
    ),
    Setting(
        "controlled.shutdown.max.retries", INT, 3, "Attempts at handing partitions over before the broker just stops."
    ),
    Setting("controlled.shutdown.retry.backoff.ms", LONG, 5000, "Time in ms between two such attempts."),
    Setting("controller.socket.timeout.ms", INT, 30_000, "Time in ms that the controller waits for a broker's answer."),
    # Quotas
    Setting(
        "leader.replication.throttled.rate",
        LONG,
        2**63 - 1,
        "Bytes in a second that leaders send to throttled replicas.",
        at_least(0),
        update=CLUSTER_WIDE,
    ),
    Setting(
        "follower.replication.throttled.rate",
        LONG,
        2**63 - 1,
        "Bytes in a second that throttled followers take.",
        at_least(0),
        update=CLUSTER_WIDE,
    ),
    Setting(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        LONG,
        2**63 - 1,
        "Bytes in a second that are copied when replicas move between log directories.",
        at_least(0),
        update=CLUSTER_WIDE,
    ),
    Setting("quota.window.num", INT, 11, "Samples kept for client quotas.", at_least(1), importance=LOW),
    Setting(
        "quota.window.size.seconds", INT, 1, "Time in seconds of one client quota sample.", at_least(1), importance=LOW
    ),
    Setting(
        "replication.quota.window.num", INT, 11, "Samples kept for replication quotas.", at_least(1), importance=LOW
    ),
    Setting(
        "replication.quota.window.size.seconds",
        INT,
        1,
        "Time in seconds of one replication quota sample.",
        at_least(1),
        importance=LOW,
    ),
    Setting("controller.quota.window.num", INT, 11, "Samples kept for mutation quotas.", at_least(1), importance=LOW),
    Setting(
        "controller.quota.window.size.seconds",
        INT,
        1,
        "Time in seconds of one mutation quota sample.",
        at_least(1),
        importance=LOW,
    ),
)
