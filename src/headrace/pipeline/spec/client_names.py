"""The names of client settings in Kafka's Java client (3.9) and, by kind of client, in librdkafka (2.x)."""

from typing import Final


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


BOTH_MEAN_THE_SAME: Final = _names(
    """
    allow.auto.create.topics batch.size check.crcs client.dns.lookup client.id client.rack compression.type
    connections.max.idle.ms delivery.timeout.ms enable.metrics.push fetch.max.bytes fetch.min.bytes
    linger.ms max.in.flight.requests.per.connection max.partition.fetch.bytes metadata.max.age.ms
    metadata.recovery.strategy reconnect.backoff.max.ms reconnect.backoff.ms retries retry.backoff.max.ms
    retry.backoff.ms sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
    sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url
    socket.connection.setup.timeout.ms ssl.endpoint.identification.algorithm
    """
)
"""Settings with the same meaning in both clients and, except for a few that are translated, the same values."""

RENAMED: Final = {
    "bootstrap.servers": "bootstrap.servers",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "security.protocol": "security.protocol",
    "sasl.mechanism": "sasl.mechanisms",
}
"""librdkafka's names by Java's names. librdkafka has a `request.timeout.ms`, but with a different meaning."""

ALIASES: Final = {
    "bootstrap": "bootstrap.servers",
    "metadata.broker.list": "bootstrap.servers",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    **{librdkafka: java for java, librdkafka in RENAMED.items() if librdkafka != java},
}
"""Alternative names that `[cluster]` accepts."""

TRANSLATED: Final = _names(
    """
    sasl.kerberos.keytab sasl.kerberos.principal sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
    sasl.oauthbearer.scope sasl.password sasl.username ssl.ca.location ssl.ca.pem ssl.certificate.location
    ssl.certificate.pem ssl.key.location ssl.key.password ssl.key.pem ssl.keystore.location ssl.keystore.password
    ssl.keystore.type ssl.truststore.location ssl.truststore.type
    """
)
"""Settings of one client from which the other client's settings are derived."""

RESERVED: Final = _names(
    """
    acks auto.offset.reset enable.auto.commit enable.idempotence group.id group.instance.id group.protocol
    interceptor.classes isolation.level key.deserializer key.serializer request.required.acks transactional.id
    value.deserializer value.serializer
    """
)
"""Settings that the pipeline controls."""

JAVA: Final = _names(
    """
    allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter batch.size bootstrap.servers
    buffer.memory check.crcs client.dns.lookup client.id client.rack compression.gzip.level compression.lz4.level
    compression.type compression.zstd.level connections.max.idle.ms default.api.timeout.ms delivery.timeout.ms
    enable.metrics.push exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes
    heartbeat.interval.ms linger.ms max.block.ms max.in.flight.requests.per.connection max.partition.fetch.bytes
    max.poll.interval.ms max.poll.records max.request.size metadata.max.age.ms metadata.max.idle.ms
    metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level
    metrics.sample.window.ms partition.assignment.strategy partitioner.adaptive.partitioning.enable
    partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys receive.buffer.bytes
    reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
    sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
    sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism sasl.oauthbearer.clock.skew.seconds
    sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
    sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
    sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url
    security.protocol security.providers send.buffer.bytes session.timeout.ms
    socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.cipher.suites
    ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password
    ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location
    ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation
    ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location ssl.truststore.password
    ssl.truststore.type transaction.timeout.ms
    """
)

LIBRDKAFKA: Final = _names(
    """
    allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
    bootstrap.servers broker.address.family broker.address.ttl client.dns.lookup client.id client.rack
    connections.max.idle.ms debug enable.metrics.push enable.sasl.oauthbearer.unsecure.jwt
    enable.ssl.certificate.verification https.ca.location https.ca.pem log.connection.close
    max.in.flight.requests.per.connection message.copy.max.bytes message.max.bytes metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy plugin.library.paths
    receive.message.max.bytes reconnect.backoff.max.ms reconnect.backoff.ms retry.backoff.max.ms retry.backoff.ms
    sasl.kerberos.keytab sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal
    sasl.kerberos.service.name sasl.mechanisms sasl.oauthbearer.assertion.algorithm
    sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
    sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
    sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
    sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.jwt.template.file
    sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
    sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
    sasl.oauthbearer.config sasl.oauthbearer.extensions sasl.oauthbearer.grant.type
    sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method sasl.oauthbearer.scope
    sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.password sasl.username
    security.protocol socket.connection.setup.timeout.ms socket.keepalive.enable socket.max.fails
    socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms
    ssl.ca.certificate.stores ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem
    ssl.cipher.suites ssl.crl.location ssl.curves.list ssl.endpoint.identification.algorithm ssl.key.location
    ssl.key.password ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.providers ssl.sigalgs.list
    statistics.interval.ms topic.metadata.propagation.max.ms topic.metadata.refresh.fast.interval.ms
    topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
    """
)
LIBRDKAFKA_PRODUCER: Final = _names(
    """
    batch.num.messages batch.size compression.level compression.type delivery.timeout.ms enable.gapless.guarantee
    linger.ms message.send.max.retries partitioner queue.buffering.backpressure.threshold
    queue.buffering.max.kbytes queue.buffering.max.messages request.timeout.ms retries
    sticky.partitioning.linger.ms transaction.timeout.ms
    """
)
"""librdkafka's settings for producers only: its other clients would log a warning."""
LIBRDKAFKA_CONSUMER: Final = _names(
    """
    auto.commit.interval.ms check.crcs fetch.error.backoff.ms fetch.max.bytes fetch.min.bytes
    fetch.queue.backoff.ms fetch.wait.max.ms heartbeat.interval.ms max.partition.fetch.bytes max.poll.interval.ms
    partition.assignment.strategy queued.max.messages.kbytes queued.min.messages session.timeout.ms
    """
)
"""librdkafka's settings for consumers only."""
