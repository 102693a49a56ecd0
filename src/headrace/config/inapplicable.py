"""Settings that are accepted but have no effect, and the reasons.

Lists the settings of Kafka 4.3 and earlier that Headrace does not need, so that an existing server.properties works
while misspelt keys are still reported. Also lists the settings in the tables that Headrace does not use yet.
"""

from typing import Final

from headrace.config.definition import Setting

REASONS: Final[tuple[tuple[str, str], ...]] = (
    ("controller.", "Headrace has no Raft quorum; brokers coordinate through their metadata store"),
    ("process.roles", "every Headrace broker can be the controller"),
    ("metadata.", "metadata is kept in the metadata store, not in a log"),
    ("zookeeper.", "connections to ZooKeeper use neither encryption nor authentication"),
    ("remote.log.", "tiered storage is not supported"),
    ("remote.", "tiered storage is not supported"),
    ("group.share.", "share groups are not supported"),
    ("share.", "share groups are not supported"),
    ("group.streams.", "the streams group protocol is not supported"),
    ("delegation.token.", "delegation tokens are not supported"),
    ("sasl.oauthbearer.", "SASL/OAUTHBEARER is not supported"),
    ("sasl.kerberos.", "SASL/GSSAPI is not supported"),
    ("alter.config.policy.", "plug-ins written in Java are not supported"),
    ("create.topic.policy.", "plug-ins written in Java are not supported"),
    ("client.quota.", "client quotas are not supported"),
    ("quota.", "client quotas are not supported"),
    ("config.providers", "values such as ${file:...} are not replaced; write them into the file"),
    ("kafka.metrics.", "metrics are fetched over HTTP (headrace.http.listener)"),
    ("telemetry.", "client metrics (KIP-714) are not supported"),
    ("", "Headrace does not need it"),
)
"""Key prefixes, and why keys with them are ignored; the first match counts."""

_NAMES: Final = """
    advertised.host.name advertised.port alter.config.policy.class.name
    alter.log.dirs.replication.quota.window.num alter.log.dirs.replication.quota.window.size.seconds
    broker.heartbeat.interval.ms broker.id.generation.enable broker.session.timeout.ms
    client.quota.callback.class config.providers
    control.plane.listener.name controller.listener.names controller.performance.always.log.threshold.ms
    controller.performance.sample.period.ms controller.quorum.append.linger.ms controller.quorum.auto.join.enable
    controller.quorum.bootstrap.servers controller.quorum.election.backoff.max.ms
    controller.quorum.election.timeout.ms controller.quorum.fetch.max.bytes
    controller.quorum.fetch.snapshot.max.bytes controller.quorum.fetch.timeout.ms
    controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms controller.quorum.voters
    create.topic.policy.class.name delegation.token.expiry.check.interval.ms delegation.token.expiry.time.ms
    delegation.token.master.key delegation.token.max.lifetime.ms delegation.token.secret.key early.start.listeners
    eligible.leader.replicas.enable follower.fetch.last.tiered.offset.enable
    group.consumer.regex.refresh.interval.ms group.coordinator.new.enable
    group.share.assignment.interval.ms group.share.assignors group.share.delivery.count.limit group.share.enable
    group.share.heartbeat.interval.ms group.share.initialize.retry.interval.ms
    group.share.max.assignment.interval.ms group.share.max.delivery.count.limit group.share.max.groups
    group.share.max.heartbeat.interval.ms group.share.max.partition.max.record.locks
    group.share.max.record.lock.duration.ms group.share.max.session.timeout.ms group.share.max.share.sessions
    group.share.max.size group.share.min.assignment.interval.ms group.share.min.delivery.count.limit
    group.share.min.heartbeat.interval.ms group.share.min.partition.max.record.locks
    group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms
    group.share.partition.max.record.locks group.share.persister.class.name group.share.record.lock.duration.ms
    group.share.session.timeout.ms group.streams.assignment.interval.ms group.streams.heartbeat.interval.ms
    group.streams.initial.rebalance.delay.ms group.streams.max.assignment.interval.ms
    group.streams.max.heartbeat.interval.ms group.streams.max.session.timeout.ms group.streams.max.size
    group.streams.max.standby.replicas group.streams.min.assignment.interval.ms
    group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms group.streams.num.standby.replicas
    group.streams.session.timeout.ms host.name initial.broker.registration.timeout.ms
    internal.metadata.delete.delay.millis internal.metadata.log.segment.bytes
    internal.metadata.max.batch.size.in.bytes kafka.metrics.polling.interval.secs kafka.metrics.reporters
    log.initial.task.delay.ms log.message.downconversion.enable log.message.format.version
    log.message.timestamp.difference.max.ms metadata.log.max.record.bytes.between.snapshots
    metadata.log.max.snapshot.interval.ms metadata.log.segment.bytes metadata.log.segment.min.bytes
    metadata.log.segment.ms metadata.max.idle.interval.ms metadata.max.retention.bytes metadata.max.retention.ms
    metrics.recording.level num.replica.alter.log.dirs.threads offsets.commit.required.acks
    password.encoder.cipher.algorithm password.encoder.iterations password.encoder.key.length
    password.encoder.keyfactory.algorithm password.encoder.old.secret password.encoder.secret port process.roles
    quota.consumer.default quota.producer.default remote.fetch.max.wait.ms
    remote.list.offsets.request.timeout.ms remote.log.index.file.cache.total.size.bytes
    remote.log.index.file.cache.ttl.ms remote.log.manager.copier.thread.pool.size
    remote.log.manager.copy.max.bytes.per.second remote.log.manager.copy.quota.window.num
    remote.log.manager.copy.quota.window.size.seconds remote.log.manager.expiration.thread.pool.size
    remote.log.manager.fetch.max.bytes.per.second remote.log.manager.fetch.quota.window.num
    remote.log.manager.fetch.quota.window.size.seconds remote.log.manager.follower.thread.pool.size
    remote.log.manager.task.interval.ms remote.log.manager.task.retry.backoff.max.ms
    remote.log.manager.task.retry.backoff.ms remote.log.manager.task.retry.jitter
    remote.log.manager.thread.pool.size remote.log.metadata.custom.metadata.max.bytes
    remote.log.metadata.manager.class.name remote.log.metadata.manager.class.path
    remote.log.metadata.manager.impl.prefix remote.log.metadata.manager.listener.name
    remote.log.reader.max.pending.tasks remote.log.reader.threads remote.log.storage.manager.class.name
    remote.log.storage.manager.class.path remote.log.storage.manager.impl.prefix
    remote.log.storage.system.enable reserved.broker.max.id sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.principal.to.local.rules sasl.kerberos.service.name
    sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor sasl.login.class
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism.controller.protocol
    sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
    sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
    sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
    sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.clock.skew.seconds
    sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
    sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
    sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope
    sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url
    security.providers server.max.startup.time.ms share.coordinator.append.linger.ms
    share.coordinator.cached.buffer.max.bytes share.coordinator.cold.partition.snapshot.interval.ms
    share.coordinator.load.buffer.size share.coordinator.snapshot.update.records.per.snapshot
    share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr
    share.coordinator.state.topic.num.partitions share.coordinator.state.topic.prune.interval.ms
    share.coordinator.state.topic.replication.factor share.coordinator.state.topic.segment.bytes
    share.coordinator.threads share.coordinator.write.timeout.ms share.fetch.purgatory.purge.interval.requests
    telemetry.max.bytes unclean.leader.election.interval.ms unstable.api.versions.enable
    unstable.feature.versions.enable unstable.metadata.versions.enable zookeeper.clientCnxnSocket
    zookeeper.max.in.flight.requests zookeeper.metadata.migration.enable
    zookeeper.metadata.migration.min.batch.size zookeeper.set.acl
    zookeeper.ssl.cipher.suites zookeeper.ssl.client.enable zookeeper.ssl.crl.enable
    zookeeper.ssl.enabled.protocols zookeeper.ssl.endpoint.identification.algorithm
    zookeeper.ssl.keystore.location zookeeper.ssl.keystore.password zookeeper.ssl.keystore.type
    zookeeper.ssl.ocsp.enable zookeeper.ssl.protocol zookeeper.ssl.truststore.location
    zookeeper.ssl.truststore.password zookeeper.ssl.truststore.type zookeeper.sync.time.ms
"""
INAPPLICABLE: Final[frozenset[str]] = frozenset(_NAMES.split())

ZOOKEEPER_PROTECTION: Final = ("zookeeper.set.acl", "zookeeper.ssl.client.enable")
"""Settings that a broker with `zookeeper.connect` must not ignore if they are true."""

_PLAINTEXT: Final = "all listeners are PLAINTEXT, without authentication"
_ONE_THREAD: Final = "one thread serves connections, requests and groups"
_QUOTAS: Final = "client quotas are not supported"

_IDLE: Final[tuple[tuple[str, str], ...]] = (
    ("allow.everyone.if.no.acl.found", _PLAINTEXT),
    ("background.threads", _ONE_THREAD),
    ("connection.failed.authentication.delay.ms", _PLAINTEXT),
    ("connections.max.reauth.ms", _PLAINTEXT),
    ("controller.quota.", _QUOTAS),
    ("cordoned.log.dirs", "all log directories get new partitions"),
    ("delete.records.purgatory.", "waiting requests are removed when they complete"),
    ("fetch.purgatory.", "waiting requests are removed when they complete"),
    ("group.coordinator.append.linger.ms", "the coordinator writes records at once"),
    ("group.coordinator.background.threads", _ONE_THREAD),
    ("group.coordinator.cached.buffer.max.bytes", "the coordinator keeps no write buffer"),
    ("group.coordinator.threads", _ONE_THREAD),
    ("local.retention.", "tiered storage is not supported"),
    ("log.dir.failure.timeout.ms", "a failed log directory takes its partitions offline at once"),
    ("log.flush.start.offset.checkpoint.interval.ms", "log start offsets are written with the recovery points"),
    ("log.local.retention.", "tiered storage is not supported"),
    ("max.connection.creation.rate", "the connection rate is not limited"),
    ("max.connections.per.ip.overrides", "max.connections.per.ip applies to every address"),
    ("metric.reporters", "metrics are fetched over HTTP (headrace.http.listener)"),
    ("metrics.", "rates are not exported; Prometheus computes them from counters"),
    ("num.io.threads", _ONE_THREAD),
    ("num.network.threads", _ONE_THREAD),
    ("num.recovery.threads.per.data.dir", "one thread recovers all logs, and 16 threads flush them at shutdown"),
    ("offsets.load.buffer.size", "committed offsets are read in chunks of 1 MiB"),
    ("principal.builder.class", _PLAINTEXT),
    ("producer.purgatory.", "waiting requests are removed when they complete"),
    ("queued.max.requests", "only memory is limited, by queued.max.request.bytes"),
    ("quota.", _QUOTAS),
    ("remote.log.", "tiered storage is not supported"),
    ("replica.high.watermark.", "high watermarks are written with the recovery points"),
    ("replica.socket.receive.", "the operating system sizes the buffers of connections to other brokers"),
    (
        "request.timeout.ms",
        "controller.socket.timeout.ms and replica.socket.timeout.ms are the timeouts of requests to other brokers",
    ),
    ("sasl.", _PLAINTEXT),
    ("share.", "share groups are not supported"),
    (
        "socket.connection.setup.timeout.",
        "controller.socket.timeout.ms and replica.socket.timeout.ms include the time to connect",
    ),
    ("ssl.", _PLAINTEXT),
    ("streams.", "the streams group protocol is not supported"),
    ("super.users", _PLAINTEXT),
    ("transaction.state.log.load.buffer.size", "transactions are read in chunks of 1 MiB"),
)
"""Name prefixes, and why settings with them have no effect. A test checks the list for broker and topic settings."""


def why_idle(name: str) -> str | None:
    """Return why the setting `name` has no effect; None if it has one."""
    return next((reason for prefix, reason in _IDLE if name.startswith(prefix)), None)


def explained(setting: Setting) -> str:
    """Return the documentation, with a note if the setting has no effect."""
    reason = why_idle(setting.name)
    return f"{setting.documentation} No effect in Headrace: {reason}." if reason else setting.documentation


def why_inapplicable(key: str) -> str | None:
    """Return why `key` is ignored; None if it is not in INAPPLICABLE."""
    if key not in INAPPLICABLE:
        return None
    return next(reason for prefix, reason in REASONS if key.startswith(prefix))
