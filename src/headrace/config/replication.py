"""Broker settings for replication, the controller and quotas.

Names, types, limits and defaults are Kafka's; see https://kafka.apache.org/documentation/#brokerconfigs.
"""

import re
from typing import Final

from headrace.config.definition import (
    BOOLEAN,
    CLUSTER_WIDE,
    HIGH,
    INT,
    LONG,
    LOW,
    STRING,
    Check,
    Setting,
    at_least,
    table,
)

_SELECTORS: Final = "org.apache.kafka.common.replica"
RACK_AWARE_SELECTOR: Final = f"{_SELECTORS}.RackAwareReplicaSelector"
LEADER_SELECTOR: Final = f"{_SELECTORS}.LeaderSelector"
_SERVER: Final = r"([^\s:,/\[\]]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?"
_SERVERS: Final = re.compile(rf"{_SERVER}(,{_SERVER})*(/|(/[^/\s]+)*)")

REPLICATION_SETTINGS: Final[dict[str, Setting]] = table(
    # ZooKeeper
    Setting(
        "zookeeper.connect",
        STRING,
        None,
        "ZooKeeper servers of the cluster to join or create, as host:port,host:port/path; its Kafka brokers must run "
        "version 3.4 to 3.9. If unset, the broker is a cluster by itself and keeps the metadata in a file.",
        Check("host:port,host:port/path", lambda v: isinstance(v, str) and _SERVERS.fullmatch(v) is not None),
        importance=HIGH,
    ),
    Setting(
        "zookeeper.session.timeout.ms",
        INT,
        18_000,
        "Time in ms without contact with ZooKeeper after which the cluster considers this broker dead.",
        at_least(1),
        importance=HIGH,
    ),
    Setting(
        "zookeeper.connection.timeout.ms",
        INT,
        None,
        "Time in ms to wait for ZooKeeper at startup; by default zookeeper.session.timeout.ms.",
        at_least(1),
        importance=HIGH,
    ),
    Setting(
        "inter.broker.protocol.version",
        STRING,
        "3.9-IV0",
        "Version of the inter-broker protocol in a cluster with ZooKeeper, from 3.4 to 3.9; set it to the value of the "
        "other brokers. Ignored without zookeeper.connect.",
    ),
    Setting(
        "headrace.state.change.log",
        STRING,
        None,
        "File for the state-change log, with a line whenever this broker starts or stops leading or following a "
        "partition. If unset, a broker with zookeeper.connect writes these lines to its log; others do not write them.",
    ),
    # Followers
    Setting(
        "num.replica.fetchers",
        INT,
        1,
        "Number of fetchers per leader that this broker replicates from. A new number applies after a restart.",
        at_least(1),
        importance=HIGH,
        update=CLUSTER_WIDE,
    ),
    Setting(
        "replica.fetch.min.bytes",
        INT,
        1,
        "Minimum bytes of records in a fetch reply to a follower; with fewer, the leader waits for more, up to "
        "replica.fetch.wait.max.ms.",
        importance=HIGH,
    ),
    Setting(
        "replica.fetch.max.bytes",
        INT,
        1_048_576,
        "Maximum bytes per partition in a fetch reply to a follower.",
        at_least(0),
    ),
    Setting(
        "replica.fetch.response.max.bytes",
        INT,
        10_485_760,
        "Maximum bytes of all partitions in a fetch reply to a follower.",
        at_least(0),
    ),
    Setting(
        "replica.fetch.wait.max.ms",
        INT,
        500,
        "Maximum time in ms that the leader waits for records before it replies to a follower's fetch; should be "
        "less than replica.lag.time.max.ms.",
        importance=HIGH,
    ),
    Setting(
        "replica.fetch.backoff.ms",
        INT,
        1000,
        "Time in ms that a follower waits before it repeats a failed fetch.",
        at_least(0),
    ),
    Setting(
        "replica.lag.time.max.ms",
        LONG,
        30_000,
        "Time in ms after which a follower that has not caught up leaves the in-sync replicas.",
        importance=HIGH,
    ),
    Setting(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        5000,
        "Interval in ms between writes of the high watermark checkpoint.",
        importance=HIGH,
    ),
    Setting(
        "replica.socket.timeout.ms",
        INT,
        30_000,
        "Time in ms that a follower waits for the leader's reply.",
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
        "Selects the replica that a consumer reads from (KIP-392): the leader, unless this is the full class name of "
        "Kafka's RackAwareReplicaSelector.",
    ),
    # Controller
    Setting(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        True,
        "Return leadership to preferred replicas automatically.",
        importance=HIGH,
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        LONG,
        300,
        "Interval in seconds between checks for partitions not led by their preferred replica.",
        at_least(1),
        importance=HIGH,
    ),
    Setting(
        "leader.imbalance.per.broker.percentage",
        INT,
        10,
        "Maximum percentage of a broker's preferred partitions led by other brokers; above it, leadership moves back.",
        importance=HIGH,
    ),
    Setting(
        "controlled.shutdown.enable",
        BOOLEAN,
        True,
        "Move leadership to other brokers before the broker stops.",
    ),
    Setting(
        "controlled.shutdown.max.retries",
        INT,
        3,
        "Maximum number of attempts to move leadership, after which the broker stops anyway.",
    ),
    Setting("controlled.shutdown.retry.backoff.ms", LONG, 5000, "Time in ms between two attempts to move leadership."),
    Setting(
        "controller.socket.timeout.ms",
        INT,
        30_000,
        "Timeout in ms of requests between the controller and other brokers.",
    ),
    # Quotas
    Setting(
        "leader.replication.throttled.rate",
        LONG,
        2**63 - 1,
        "Maximum bytes per second that this broker sends to followers for the replicas in "
        "leader.replication.throttled.replicas; followers in the ISR are not delayed.",
        at_least(0),
        update=CLUSTER_WIDE,
    ),
    Setting(
        "follower.replication.throttled.rate",
        LONG,
        2**63 - 1,
        "Maximum bytes per second that this broker receives for the replicas in "
        "follower.replication.throttled.replicas.",
        at_least(0),
        update=CLUSTER_WIDE,
    ),
    Setting(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        LONG,
        2**63 - 1,
        "Maximum bytes per second copied when replicas move between log directories.",
        at_least(0),
        update=CLUSTER_WIDE,
    ),
    Setting("quota.window.num", INT, 11, "Number of samples kept for client quotas.", at_least(1), importance=LOW),
    Setting(
        "quota.window.size.seconds", INT, 1, "Length in seconds of a client quota sample.", at_least(1), importance=LOW
    ),
    Setting(
        "replication.quota.window.num",
        INT,
        11,
        "Number of samples kept for replication quotas.",
        at_least(1),
        importance=LOW,
    ),
    Setting(
        "replication.quota.window.size.seconds",
        INT,
        1,
        "Length in seconds of a replication quota sample.",
        at_least(1),
        importance=LOW,
    ),
    Setting(
        "controller.quota.window.num",
        INT,
        11,
        "Number of samples kept for controller mutation quotas.",
        at_least(1),
        importance=LOW,
    ),
    Setting(
        "controller.quota.window.size.seconds",
        INT,
        1,
        "Length in seconds of a controller mutation quota sample.",
        at_least(1),
        importance=LOW,
    ),
)
