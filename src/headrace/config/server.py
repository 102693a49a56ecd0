"""Broker settings about the process itself: identity, listeners, connections, limits, defaults of new topics.

Names, types, limits and, unless the documentation says otherwise, defaults are Kafka's; see
https://kafka.apache.org/documentation/#brokerconfigs.
"""

from typing import Final

from headrace.config.definition import (
    BOOLEAN,
    CLUSTER_WIDE,
    CODECS,
    GZIP_LEVEL,
    HIGH,
    INT,
    LIST,
    LONG,
    LOW,
    MAX_INT,
    STRING,
    Setting,
    at_least,
    between,
    one_of,
    table,
)

SERVER_SETTINGS: Final[dict[str, Setting]] = table(
    # Identity
    Setting(
        "node.id",
        INT,
        0,
        "Number of this broker in its cluster; where it is not set, the one that the data directory belongs to. "
        "broker.id is the same setting under its older name.",
        at_least(0),
        importance=HIGH,
    ),
    Setting(
        "broker.id",
        INT,
        0,
        "Older name of node.id; -1 is the same as not setting it.",
        at_least(-1),
        importance=HIGH,
    ),
    Setting(
        "broker.rack", STRING, None, "Rack or zone of this broker, for placing replicas and reading from the nearest."
    ),
    Setting(
        "headrace.adopt.partial",
        BOOLEAN,
        False,
        "Whether a directory that Kafka wrote is adopted even where some partitions or replicas of its cluster are "
        "elsewhere. Those that are not here begin empty, and the replicas on other brokers are given up.",
    ),
    Setting(
        "headrace.unknown.settings",
        STRING,
        "warn",
        "What happens to unknown keys in the settings file: `warn` ignores them with one line in the log, as Kafka "
        "does; `refuse` prevents the start. With --set and in the environment they are always errors.",
        one_of("warn", "refuse"),
    ),
    Setting(
        "metadata.log.dir",
        STRING,
        None,
        "Where Kafka kept the metadata log of a KRaft cluster, if not in one of log.dirs. Read once, when a directory "
        "that Kafka wrote is adopted; Headrace's own metadata is in log.dirs.",
    ),
    # Listeners
    Setting(
        "listeners",
        LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "Addresses on which the broker listens, as NAME://host:port. Headrace's default takes only local connections; "
        "NAME://:9092 listens on every interface, and port 0 picks a free port. Unlike Kafka's, it needs a restart.",
        importance=HIGH,
    ),
    Setting(
        "advertised.listeners",
        LIST,
        None,
        "Addresses that clients are told to use, as NAME://host:port. Without it every client is told the address "
        "that it actually reached.",
        importance=HIGH,
        synonyms=("listeners",),
    ),
    Setting(
        "listener.security.protocol.map",
        STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Security protocol of each listener name, as NAME:PROTOCOL pairs. Unlike Kafka's, it needs a restart.",
        importance=LOW,
    ),
    Setting(
        "inter.broker.listener.name",
        STRING,
        None,
        "Listener through which brokers talk to each other; the one of security.inter.broker.protocol when unset.",
    ),
    Setting("socket.listen.backlog.size", INT, 50, "Connections that may wait to be accepted.", at_least(1)),
    Setting(
        "headrace.busy.poll.us",
        INT,
        100,
        "Microseconds for which the broker keeps looking for the next request before it sleeps, while small requests "
        "come one soon after the other; 0 never. It shortens their round trips; set 0 where CPU time is rationed.",
        between(0, 10_000),
    ),
    Setting(
        "socket.receive.buffer.bytes",
        INT,
        102_400,
        "Receive buffer of a client's socket in bytes; -1 leaves it to the operating system.",
        at_least(-1),
        importance=HIGH,
    ),
    Setting(
        "socket.send.buffer.bytes",
        INT,
        384 * 1024,
        "Send buffer of a client's socket in bytes (102400 in Kafka); -1 leaves it to the operating system.",
        at_least(-1),
        importance=HIGH,
    ),
    Setting(
        "socket.request.max.bytes",
        INT,
        104_857_600,
        "Largest request in bytes; a connection that announces a larger one is closed.",
        at_least(1),
        importance=HIGH,
    ),
    Setting(
        "queued.max.request.bytes",
        LONG,
        -1,
        "Bytes of requests in work beyond which no more are read from any connection; -1 sets no limit.",
    ),
    Setting(
        "queued.max.requests",
        INT,
        500,
        "Requests that may wait for an answer, over all connections, before reading pauses.",
        at_least(1),
        importance=HIGH,
    ),
    Setting("connections.max.idle.ms", LONG, 600_000, "Time in ms after which a silent connection is closed."),
    Setting(
        "max.connections",
        INT,
        MAX_INT,
        "Connections open at once, over all listeners; the next one waits to be accepted.",
        at_least(0),
        update=CLUSTER_WIDE,
    ),
    Setting(
        "max.connections.per.ip",
        INT,
        MAX_INT,
        "Connections open at once from one address; the next one is closed.",
        at_least(0),
        update=CLUSTER_WIDE,
    ),
    Setting(
        "max.connections.per.ip.overrides",
        STRING,
        "",
        "Other limits for some addresses, as host:count pairs with commas between them.",
        update=CLUSTER_WIDE,
    ),
    Setting(
        "max.connection.creation.rate",
        INT,
        MAX_INT,
        "Connections accepted in a second.",
        at_least(0),
        update=CLUSTER_WIDE,
    ),
    Setting(
        "request.timeout.ms",
        INT,
        30_000,
        "Time in ms that this broker waits for an answer of another broker.",
        importance=HIGH,
    ),
    Setting(
        "socket.connection.setup.timeout.ms",
        LONG,
        10_000,
        "Time in ms that this broker gives a connection to another broker to come up.",
    ),
    Setting(
        "socket.connection.setup.timeout.max.ms",
        LONG,
        30_000,
        "Longest such time in ms, after it has grown with failed attempts.",
    ),
    # Threads
    Setting(
        "num.network.threads",
        INT,
        3,
        "Threads that serve connections.",
        at_least(1),
        importance=HIGH,
        update=CLUSTER_WIDE,
    ),
    Setting(
        "num.io.threads",
        INT,
        8,
        "Threads that work on requests.",
        at_least(1),
        importance=HIGH,
        update=CLUSTER_WIDE,
    ),
    Setting(
        "background.threads",
        INT,
        10,
        "Threads for slow work.",
        at_least(1),
        importance=HIGH,
        update=CLUSTER_WIDE,
    ),
    Setting(
        "num.recovery.threads.per.data.dir",
        INT,
        2,
        "Threads for each log directory that load and recover logs at start and flush them at shutdown.",
        at_least(1),
        importance=HIGH,
        update=CLUSTER_WIDE,
    ),
    # Requests
    Setting(
        "fetch.max.bytes", INT, 57_671_680, "Most bytes that the broker puts into one fetch answer.", at_least(1024)
    ),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        INT,
        1000,
        "Fetch sessions (KIP-227) that the broker remembers.",
        at_least(0),
    ),
    Setting(
        "max.request.partition.size.limit",
        INT,
        2000,
        "Most partitions in one answer to DescribeTopicPartitions; the rest follows by cursor.",
        at_least(1),
    ),
    Setting(
        "fetch.purgatory.purge.interval.requests",
        INT,
        1000,
        "Fetches after which those that wait no more are cleared away.",
    ),
    Setting(
        "producer.purgatory.purge.interval.requests",
        INT,
        1000,
        "Produces after which those that wait no more are cleared away.",
    ),
    Setting(
        "delete.records.purgatory.purge.interval.requests",
        INT,
        1,
        "Record deletions after which those that wait no more are cleared away.",
    ),
    # Topics
    Setting(
        "auto.create.topics.enable",
        BOOLEAN,
        True,
        "Whether asking for a topic that does not exist creates it, where the client allows it.",
        importance=HIGH,
    ),
    Setting("delete.topic.enable", BOOLEAN, True, "Whether topics can be deleted.", importance=HIGH),
    Setting("num.partitions", INT, 1, "Partitions of a topic that is created without a number.", at_least(1)),
    Setting(
        "default.replication.factor",
        INT,
        1,
        "Replicas of a topic that is created without a number.",
        at_least(1),
    ),
    Setting(
        "min.insync.replicas",
        INT,
        1,
        "In-sync replicas, the leader among them, without which a produce with acks=all is refused; topics can differ.",
        at_least(1),
        importance=HIGH,
        update=CLUSTER_WIDE,
    ),
    Setting(
        "unclean.leader.election.enable",
        BOOLEAN,
        False,
        "Whether a replica outside the in-sync set may lead when no other is left; topics can differ.",
        importance=HIGH,
        update=CLUSTER_WIDE,
    ),
    Setting(
        "compression.type",
        STRING,
        "producer",
        "Codec in which topics store batches unless they say otherwise; `producer` keeps the producer's.",
        one_of(*CODECS),
        importance=HIGH,
        update=CLUSTER_WIDE,
    ),
    Setting(
        "compression.gzip.level", INT, -1, "Effort of gzip; -1 is zlib's default.", GZIP_LEVEL, update=CLUSTER_WIDE
    ),
    Setting("compression.lz4.level", INT, 9, "Effort of LZ4.", between(1, 17), update=CLUSTER_WIDE),
    Setting("compression.zstd.level", INT, 3, "Effort of Zstandard.", between(-131072, 22), update=CLUSTER_WIDE),
    Setting(
        "message.max.bytes",
        INT,
        1_048_588,
        "Largest record batch in bytes, after compression, that topics take unless they say otherwise.",
        at_least(0),
        importance=HIGH,
        update=CLUSTER_WIDE,
    ),
    # Metrics
    Setting(
        "headrace.http.listener",
        STRING,
        None,
        "Address, as host:port, at which the broker shows its metrics to Prometheus and JSON to curl; a port alone is "
        "on 127.0.0.1, port 0 any free one. It only reads, but has no authentication. Without it there is none.",
    ),
    Setting("metrics.num.samples", INT, 2, "Samples kept for a rate.", at_least(1), importance=LOW),
    Setting(
        "metrics.sample.window.ms", LONG, 30_000, "Time in ms that one sample covers.", at_least(1), importance=LOW
    ),
    Setting(
        "metric.reporters",
        LIST,
        (),
        "Classes that report metrics.",
        importance=LOW,
        update=CLUSTER_WIDE,
    ),
)
