"""Broker settings for TLS, SASL and authorization, also per listener as listener.name.<name>.<key>.

Names, types, limits and, unless the documentation says otherwise, defaults are Kafka's; see
https://kafka.apache.org/documentation/#brokerconfigs.
"""

from typing import Final

from headrace.config.definition import (
    BOOLEAN,
    CLASS,
    INT,
    LIST,
    LONG,
    LOW,
    PASSWORD,
    PER_BROKER,
    STRING,
    Setting,
    at_least,
    one_of,
    table,
)

SECURITY_SETTINGS: Final[dict[str, Setting]] = table(
    # Between brokers
    Setting(
        "security.inter.broker.protocol",
        STRING,
        "PLAINTEXT",
        "Security protocol between brokers, if inter.broker.listener.name is not set; Headrace supports only "
        "PLAINTEXT.",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ),
    Setting(
        "sasl.mechanism.inter.broker.protocol",
        STRING,
        "GSSAPI",
        "SASL mechanism between brokers.",
        update=PER_BROKER,
    ),
    # Authorization
    Setting(
        "authorizer.class.name",
        STRING,
        "",
        "Authorizer class; must be empty, because Headrace has no authorization.",
        importance=LOW,
    ),
    Setting("super.users", STRING, "", "Principals with all permissions, separated by semicolons.", importance=LOW),
    Setting(
        "allow.everyone.if.no.acl.found",
        BOOLEAN,
        False,
        "Allow everyone to access resources without ACLs.",
        importance=LOW,
    ),
    Setting(
        "principal.builder.class",
        CLASS,
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        "Class that builds the principal of an authenticated connection.",
        update=PER_BROKER,
    ),
    # SASL
    Setting("sasl.enabled.mechanisms", LIST, ("GSSAPI",), "SASL mechanisms that clients may use.", update=PER_BROKER),
    Setting(
        "sasl.jaas.config",
        PASSWORD,
        None,
        "JAAS login module and its options; on brokers, prefix it with `listener.name.<name>.<mechanism>.`.",
        update=PER_BROKER,
    ),
    Setting(
        "sasl.client.callback.handler.class",
        CLASS,
        None,
        "Class that provides credentials when this broker is the client.",
    ),
    Setting(
        "sasl.login.callback.handler.class",
        CLASS,
        None,
        "Class that provides credentials at login.",
    ),
    Setting(
        "sasl.server.callback.handler.class",
        CLASS,
        None,
        "Class that checks the credentials of clients.",
    ),
    Setting(
        "sasl.server.max.receive.size", INT, 524_288, "Maximum size in bytes of a SASL message before authentication."
    ),
    Setting(
        "connections.max.reauth.ms",
        LONG,
        0,
        "Time in ms after which a SASL client must authenticate again (KIP-368); 0 for never.",
    ),
    Setting(
        "connection.failed.authentication.delay.ms",
        INT,
        100,
        "Time in ms before a connection is closed after failed authentication.",
        at_least(0),
        importance=LOW,
    ),
    # TLS
    Setting(
        "ssl.keystore.type",
        STRING,
        "JKS",
        "Format of the key store, such as JKS, PKCS12 or PEM.",
        update=PER_BROKER,
    ),
    Setting("ssl.keystore.location", STRING, None, "File with the broker's key and certificates.", update=PER_BROKER),
    Setting("ssl.keystore.password", PASSWORD, None, "Password of the key store.", update=PER_BROKER),
    Setting("ssl.keystore.key", PASSWORD, None, "The broker's private key as PEM text.", update=PER_BROKER),
    Setting(
        "ssl.keystore.certificate.chain",
        PASSWORD,
        None,
        "The broker's certificate chain as PEM text.",
        update=PER_BROKER,
    ),
    Setting("ssl.key.password", PASSWORD, None, "Password of the private key.", update=PER_BROKER),
    Setting("ssl.truststore.type", STRING, "JKS", "Format of the trust store.", update=PER_BROKER),
    Setting("ssl.truststore.location", STRING, None, "File with the trusted certificates.", update=PER_BROKER),
    Setting("ssl.truststore.password", PASSWORD, None, "Password of the trust store.", update=PER_BROKER),
    Setting("ssl.truststore.certificates", PASSWORD, None, "Trusted certificates as PEM text.", update=PER_BROKER),
    Setting(
        "ssl.client.auth",
        STRING,
        "none",
        "Client certificates: required, requested or none.",
        one_of("required", "requested", "none"),
        update=PER_BROKER,
    ),
    Setting("ssl.protocol", STRING, "TLSv1.3", "Newest TLS version to use.", update=PER_BROKER),
    Setting("ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), "Allowed TLS versions.", update=PER_BROKER),
    Setting("ssl.cipher.suites", LIST, (), "Allowed cipher suites; empty for the default ones.", update=PER_BROKER),
    Setting(
        "ssl.endpoint.identification.algorithm",
        STRING,
        "https",
        "Algorithm that checks the host name in another broker's certificate; empty disables the check.",
        importance=LOW,
        update=PER_BROKER,
    ),
    Setting(
        "ssl.principal.mapping.rules",
        STRING,
        "DEFAULT",
        "Rules that map a certificate's subject to a principal name.",
        importance=LOW,
    ),
    Setting(
        "ssl.allow.dn.changes",
        BOOLEAN,
        False,
        "Allow a reloaded certificate with a different subject.",
        importance=LOW,
    ),
    Setting(
        "ssl.allow.san.changes",
        BOOLEAN,
        False,
        "Allow a reloaded certificate without some of the old one's subject alternative names.",
        importance=LOW,
    ),
    Setting("ssl.provider", STRING, None, "Name of the Java security provider for TLS.", update=PER_BROKER),
    Setting("ssl.keymanager.algorithm", STRING, "SunX509", "Algorithm of the key manager.", update=PER_BROKER),
    Setting("ssl.trustmanager.algorithm", STRING, "PKIX", "Algorithm of the trust manager.", update=PER_BROKER),
    Setting(
        "ssl.secure.random.implementation",
        STRING,
        None,
        "Source of random numbers for TLS.",
        importance=LOW,
        update=PER_BROKER,
    ),
    Setting(
        "ssl.engine.factory.class",
        CLASS,
        None,
        "Class that creates the TLS engine.",
        importance=LOW,
        update=PER_BROKER,
    ),
)
