"""Broker settings for the process: identity, listeners, connections, limits, defaults of new topics.

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
        "Id of this broker in its cluster; if unset, the id stored in the data directory. broker.id is its older name.",
        at_least(0),
        importance=HIGH,
    ),
    Setting(
        "broker.id",
        INT,
        0,
        "Older name of node.id; -1 means unset.",
        at_least(-1),
        importance=HIGH,
    ),
    Setting(
        "broker.rack",
        STRING,
        None,
        "Rack or zone of this broker, used to place replicas and, with replica.selector.class, to let consumers read "
        "from their own rack.",
    ),
    Setting(
        "headrace.adopt.partial",
        BOOLEAN,
        False,
        "Adopt a Kafka directory even if some partitions or replicas of its cluster are elsewhere. Missing "
        "partitions start empty, and replicas on other brokers are ignored.",
    ),
    Setting(
        "headrace.unknown.settings",
        STRING,
        "warn",
        "Treatment of unknown keys in the settings file: `warn` logs one line and ignores them, as Kafka "
        "does; with `refuse`, the broker does not start. With --set they are always errors.",
        one_of("warn", "refuse"),
    ),
    Setting(
        "metadata.log.dir",
        STRING,
        None,
        "Directory of a KRaft metadata log outside log.dirs. It is read once, when a Kafka directory is "
        "adopted; Headrace stores its own metadata in log.dirs, or in ZooKeeper if zookeeper.connect is set.",
    ),
    # Listeners
    Setting(
        "listeners",
        LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "Addresses to listen on, as NAME://host:port. Headrace's default accepts only local connections; "
        "NAME://:9092 listens on all interfaces (IPv4), and port 0 picks a free port. Unlike in Kafka, a change "
        "needs a restart.",
        importance=HIGH,
    ),
    Setting(
        "advertised.listeners",
        LIST,
        None,
        "Addresses given to clients, as NAME://host:port. By default clients get the address through which "
        "they reached the broker; in a cluster, the other brokers give them the address in listeners.",
        importance=HIGH,
        synonyms=("listeners",),
    ),
    Setting(
        "listener.security.protocol.map",
        STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Security protocols of the listeners, as NAME:PROTOCOL pairs. Unlike in Kafka, a change needs a restart.",
        importance=LOW,
    ),
    Setting(
        "inter.broker.listener.name",
        STRING,
        None,
        "Listener for connections between brokers; if unset, the one of security.inter.broker.protocol.",
    ),
    Setting(
        "socket.listen.backlog.size",
        INT,
        50,
        "Maximum number of connections waiting to be accepted. The default shown is Kafka's; unless it is set "
        "explicitly, Headrace uses the system's maximum.",
        at_least(1),
    ),
    Setting(
        "headrace.busy.poll.us",
        INT,
        100,
        "Time in microseconds to poll for the next request before sleeping, while small requests arrive in quick "
        "succession; 0 disables polling. Polling shortens round trips but uses CPU time: set it to 0 if CPU time is "
        "scarce.",
        between(0, 10_000),
    ),
    Setting(
        "socket.receive.buffer.bytes",
        INT,
        102_400,
        "Receive buffer of a client's socket in bytes; with -1 the system sizes it. The default shown is Kafka's; "
        "unless it is set explicitly, the system sizes the buffer.",
        at_least(-1),
        importance=HIGH,
    ),
    Setting(
        "socket.send.buffer.bytes",
        INT,
        384 * 1024,
        "Send buffer of a client's socket in bytes (102400 in Kafka); -1 for the system's default.",
        at_least(-1),
        importance=HIGH,
    ),
    Setting(
        "socket.request.max.bytes",
        INT,
        104_857_600,
        "Maximum size of a Produce request in bytes, and of any other request up to 16 MiB; a connection that sends a "
        "larger one is closed.",
        at_least(1),
        importance=HIGH,
    ),
    Setting(
        "queued.max.request.bytes",
        LONG,
        -1,
        "Maximum memory in bytes for incomplete requests; beyond it, requests larger than 16 KiB wait. -1 means 256 "
        "MiB (no limit in Kafka).",
    ),
    Setting(
        "queued.max.requests",
        INT,
        500,
        "Maximum number of requests in progress, above which the broker stops reading.",
        at_least(1),
        importance=HIGH,
    ),
    Setting("connections.max.idle.ms", LONG, 600_000, "Time in ms after which an idle connection is closed."),
    Setting(
        "max.connections",
        INT,
        MAX_INT,
        "Maximum number of connections across all listeners; further connections are closed (in Kafka, they wait).",
        at_least(0),
        update=CLUSTER_WIDE,
    ),
    Setting(
        "max.connections.per.ip",
        INT,
        MAX_INT,
        "Maximum number of connections from one address; further connections are closed.",
        at_least(0),
        update=CLUSTER_WIDE,
    ),
    Setting(
        "max.connections.per.ip.overrides",
        STRING,
        "",
        "Limits for single addresses, as host:count pairs separated by commas.",
        update=CLUSTER_WIDE,
    ),
    Setting(
        "max.connection.creation.rate",
        INT,
        MAX_INT,
        "Maximum number of connections accepted per second.",
        at_least(0),
        update=CLUSTER_WIDE,
    ),
    Setting(
        "request.timeout.ms",
        INT,
        30_000,
        "Time in ms that this broker waits for another broker's reply.",
        importance=HIGH,
    ),
    Setting(
        "socket.connection.setup.timeout.ms",
        LONG,
        10_000,
        "Time in ms to set up a connection to another broker.",
    ),
    Setting(
        "socket.connection.setup.timeout.max.ms",
        LONG,
        30_000,
        "Maximum time in ms to set up a connection to another broker; failed attempts raise the timeout up to this "
        "value.",
    ),
    # Threads
    Setting(
        "num.network.threads",
        INT,
        3,
        "Number of threads that serve connections.",
        at_least(1),
        importance=HIGH,
        update=CLUSTER_WIDE,
    ),
    Setting(
        "num.io.threads",
        INT,
        8,
        "Number of threads that process requests.",
        at_least(1),
        importance=HIGH,
        update=CLUSTER_WIDE,
    ),
    Setting(
        "background.threads",
        INT,
        10,
        "Number of threads for background work.",
        at_least(1),
        importance=HIGH,
        update=CLUSTER_WIDE,
    ),
    Setting(
        "num.recovery.threads.per.data.dir",
        INT,
        2,
        "Number of threads per log directory that load and recover logs at start and flush them at shutdown.",
        at_least(1),
        importance=HIGH,
        update=CLUSTER_WIDE,
    ),
    # Requests
    Setting("fetch.max.bytes", INT, 57_671_680, "Maximum bytes of records in one fetch reply.", at_least(1024)),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        INT,
        1000,
        "Maximum number of incremental fetch sessions (KIP-227).",
        at_least(0),
    ),
    Setting(
        "max.request.partition.size.limit",
        INT,
        2000,
        "Maximum number of partitions in one reply to DescribeTopicPartitions; the cursor returns the rest.",
        at_least(1),
    ),
    Setting(
        "fetch.purgatory.purge.interval.requests",
        INT,
        1000,
        "Number of fetches between purges of completed fetches.",
    ),
    Setting(
        "producer.purgatory.purge.interval.requests",
        INT,
        1000,
        "Number of produce requests between purges of completed requests.",
    ),
    Setting(
        "delete.records.purgatory.purge.interval.requests",
        INT,
        1,
        "Number of DeleteRecords requests between purges of completed requests.",
    ),
    # Topics
    Setting(
        "auto.create.topics.enable",
        BOOLEAN,
        True,
        "Create a missing topic when a client requests its metadata, unless the request forbids it"
        " (allow.auto.create.topics=false in a consumer).",
        importance=HIGH,
    ),
    Setting("delete.topic.enable", BOOLEAN, True, "Allow the deletion of topics.", importance=HIGH),
    Setting("num.partitions", INT, 1, "Default number of partitions of a new topic.", at_least(1)),
    Setting(
        "default.replication.factor",
        INT,
        1,
        "Default number of replicas per partition of a new topic.",
        at_least(1),
    ),
    Setting(
        "min.insync.replicas",
        INT,
        1,
        "Minimum number of in-sync replicas, including the leader, for a write with acks=all; default of the topic "
        "setting.",
        at_least(1),
        importance=HIGH,
        update=CLUSTER_WIDE,
    ),
    Setting(
        "unclean.leader.election.enable",
        BOOLEAN,
        False,
        "Allow a replica that is not in sync to become leader if no in-sync replica is alive; default of the topic "
        "setting.",
        importance=HIGH,
        update=CLUSTER_WIDE,
    ),
    Setting(
        "compression.type",
        STRING,
        "producer",
        "Default codec in which topics store batches; `producer` keeps the producer's.",
        one_of(*CODECS),
        importance=HIGH,
        update=CLUSTER_WIDE,
    ),
    Setting(
        "compression.gzip.level",
        INT,
        -1,
        "gzip compression level; -1 is zlib's default.",
        GZIP_LEVEL,
        update=CLUSTER_WIDE,
    ),
    Setting("compression.lz4.level", INT, 9, "LZ4 compression level.", between(1, 17), update=CLUSTER_WIDE),
    Setting(
        "compression.zstd.level", INT, 3, "Zstandard compression level.", between(-131072, 22), update=CLUSTER_WIDE
    ),
    Setting(
        "message.max.bytes",
        INT,
        1_048_588,
        "Maximum size in bytes of a record batch after compression; default of the topic setting max.message.bytes.",
        at_least(0),
        importance=HIGH,
        update=CLUSTER_WIDE,
    ),
    # Metrics
    Setting(
        "headrace.http.listener",
        STRING,
        None,
        "Address, as host:port, of the HTTP server for metrics (Prometheus) and JSON; a port alone means 127.0.0.1, "
        "port 0 any free port. The server is read-only and has no authentication. Off by default.",
    ),
    Setting("metrics.num.samples", INT, 2, "Number of samples kept for a rate.", at_least(1), importance=LOW),
    Setting("metrics.sample.window.ms", LONG, 30_000, "Length of a sample in ms.", at_least(1), importance=LOW),
    Setting(
        "metric.reporters",
        LIST,
        (),
        "Classes that report metrics.",
        importance=LOW,
        update=CLUSTER_WIDE,
    ),
)
