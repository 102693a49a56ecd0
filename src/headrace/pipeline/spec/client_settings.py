"""One `[cluster]` table for both Kafka clients: `kafka.*` options of Spark, and the configuration of confluent-kafka.

A setting has the same name and value in both clients, or belongs to one client and is translated for the other. The
tables `[cluster.java]` and `[cluster.librdkafka]` are for settings of only one client. Neither client is imported.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.client_names import (
    ALIASES,
    BOTH_MEAN_THE_SAME,
    JAVA,
    LIBRDKAFKA,
    LIBRDKAFKA_CONSUMER,
    LIBRDKAFKA_PRODUCER,
    RENAMED,
    RESERVED,
    TRANSLATED,
)
from headrace.pipeline.spec.params import unknown
from headrace.pipeline.spec.secret_values import Options, Secret, Value, flattened, read_text

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER")
_MINUS_ONE_IS_ZERO: Final = frozenset({"receive.buffer.bytes", "send.buffer.bytes", "connections.max.idle.ms"})
"""Settings whose -1 in Java ('system default', 'never') is 0 in librdkafka."""
_LOCATIONS: Final = frozenset(
    {
        "sasl.kerberos.keytab",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.keystore.location",
        "ssl.truststore.location",
    }
)
_SECURITY: Final = "org.apache.kafka.common.security"
_PEM: Final = "-----BEGIN {0}-----.*?-----END {0}-----"
_PKCS8_KEY: Final = re.compile(_PEM.format("(?:ENCRYPTED )?PRIVATE KEY"), re.DOTALL)
_CERTIFICATE: Final = re.compile(_PEM.format("CERTIFICATE"), re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A Kafka cluster and its client settings. Printing it shows no secrets: only the methods below read them."""

    settings: Mapping[str, Value]
    java: Mapping[str, Value]
    librdkafka: Mapping[str, Value]

    @property
    def bootstrap(self) -> str:
        """The brokers, as HOST:PORT separated by commas."""
        return str(self.settings["bootstrap.servers"])

    def spark_options(self) -> Options:
        """Return the `kafka.*` options of Spark's Kafka source. Raises PipelineError for an unusable secret or file.

        PEM certificates and keys are passed as text, so that workers do not need the files. A PKCS12 key store or a
        keytab must exist on every worker.
        """
        settings = _read(self.settings)
        found = {name: value for name, value in settings.items() if name in BOTH_MEAN_THE_SAME or name in RENAMED}
        if found.get("ssl.endpoint.identification.algorithm") == "none":
            found["ssl.endpoint.identification.algorithm"] = ""
        found |= _java_tls(settings) | _java_sasl(settings) | _read(self.java)
        return Options({f"kafka.{name}": value for name, value in found.items()})

    def confluent(self, kind: Literal["admin", "producer", "consumer"]) -> Options:
        """Return the configuration of a confluent-kafka client. Raises PipelineError if a secret cannot be read."""
        settings = _read(self.settings)
        found = {name: value for name, value in settings.items() if name not in RENAMED}
        found |= {other: settings[name] for name, other in RENAMED.items() if name in settings}
        for name in _MINUS_ONE_IS_ZERO & settings.keys():
            if settings[name] == "-1":
                found[RENAMED.get(name, name)] = "0"
        if found.get("ssl.endpoint.identification.algorithm") == "":
            found["ssl.endpoint.identification.algorithm"] = "none"
        if settings.get("sasl.mechanism") == "OAUTHBEARER" and "sasl.oauthbearer.token.endpoint.url" in settings:
            found["sasl.oauthbearer.method"] = "oidc"
        found |= _read(self.librdkafka)
        others = {
            "admin": LIBRDKAFKA_PRODUCER | LIBRDKAFKA_CONSUMER,
            "producer": LIBRDKAFKA_CONSUMER,
            "consumer": LIBRDKAFKA_PRODUCER,
        }[kind]
        return Options({name: value for name, value in found.items() if name not in others})


def plain(bootstrap: str) -> Cluster:
    """Return the cluster at HOST:PORT, without encryption or authentication."""
    return Cluster(settings={"bootstrap.servers": bootstrap}, java={}, librdkafka={})


def parse(table: Mapping[str, object], directory: Path) -> Cluster:
    """Return the cluster of the TOML table `[cluster]`. Relative paths are resolved from `directory`.

    Raises PipelineError for an unknown, invalid or missing setting, a secret in plain text, or contradictory settings.
    """
    only = {name: table.get(name, {}) for name in ("java", "librdkafka")}
    for name, own_table in only.items():
        if not isinstance(own_table, dict):
            raise PipelineError(f"[cluster] {name} must be a table: [cluster.{name}]")
    shared = {name: value for name, value in table.items() if name not in only}
    settings: dict[str, Value] = {}
    names: dict[str, str] = {}
    for name, value in flattened(shared, "[cluster]", directory).items():
        own = ALIASES.get(name, name)
        _check_shared(name, own)
        if (first := names.setdefault(own, name)) != name:
            raise PipelineError(f"[cluster] {first} and {name} are the same setting: remove one of them")
        if own in ("security.protocol", "sasl.mechanism") and isinstance(value, str):
            value = value.upper()
        settings[own] = _located(own, value, directory)
    java = _checked("java", only["java"], JAVA, directory)
    librdkafka = _checked(
        "librdkafka", only["librdkafka"], LIBRDKAFKA | LIBRDKAFKA_PRODUCER | LIBRDKAFKA_CONSUMER, directory
    )
    settings = _with_pem_stores(settings)
    _check_security(settings)
    return Cluster(settings=settings, java=java, librdkafka=librdkafka)


def _check_shared(name: str, own: str) -> None:
    if name in RESERVED:
        raise PipelineError(f"[cluster] {name} is set by the pipeline itself: remove it")
    if name == "sasl.jaas.config":
        raise PipelineError(
            "[cluster] sasl.jaas.config exists only in the Java client: give sasl.mechanism, sasl.username and "
            "sasl.password instead, which apply to both clients"
        )
    if own in BOTH_MEAN_THE_SAME or own in RENAMED or own in TRANSLATED:
        return
    for client, names in (
        ("java", JAVA),
        ("librdkafka", LIBRDKAFKA | LIBRDKAFKA_PRODUCER | LIBRDKAFKA_CONSUMER),
    ):
        if name in names:
            raise PipelineError(
                f"[cluster] {name} cannot be set for both clients at once: set it under [cluster.{client}], which is "
                f"for {'Spark' if client == 'java' else 'confluent-kafka'} alone"
            )
    raise PipelineError(_unknown("[cluster]", name, BOTH_MEAN_THE_SAME | RENAMED.keys() | TRANSLATED | ALIASES.keys()))


def _checked(client: str, table: object, names: frozenset[str], directory: Path) -> dict[str, Value]:
    assert isinstance(table, dict)
    found = flattened(table, f"[cluster.{client}]", directory)
    for name in found:
        if name in RESERVED:
            raise PipelineError(f"[cluster.{client}] {name} is set by the pipeline itself: remove it")
        if name not in names:
            raise PipelineError(_unknown(f"[cluster.{client}]", name, names))
    return {name: _located(name, value, directory) for name, value in found.items()}


def _unknown(where: str, name: str, names: Iterable[str]) -> str:
    # Leave out the list of known names, which is too long.
    return f"{where} {unknown('setting', name, names).partition(' Known ')[0]}"


def _located(name: str, value: Value, directory: Path) -> Value:
    if name in _LOCATIONS and isinstance(value, str):
        return str(directory / Path(value).expanduser())
    return value


def _with_pem_stores(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings with PEM stores under librdkafka's names. Raises PipelineError for unsupported stores."""
    found = dict(settings)
    location, kind = found.pop("ssl.truststore.location", None), found.pop("ssl.truststore.type", "PEM")
    if location is not None:
        if str(kind).upper() != "PEM" or not str(location).endswith((".pem", ".crt", ".cer")):
            raise PipelineError(
                "[cluster] ssl.truststore.location must be a PEM file (.pem, .crt or .cer), because librdkafka cannot "
                "read Java trust stores. Export its certificates "
                f"(keytool -exportcert -rfc -keystore {location} -file ca.pem) and set ssl.ca.location to that file"
            )
        found["ssl.ca.location"] = location
    store, kind = found.get("ssl.keystore.location"), str(found.pop("ssl.keystore.type", "")).upper()
    if store is not None:
        kind = kind or {".pem": "PEM", ".p12": "PKCS12", ".pfx": "PKCS12"}.get(Path(str(store)).suffix, "")
        if kind == "PEM":
            if "ssl.keystore.password" in found:
                raise PipelineError(
                    "[cluster] ssl.keystore.password does not apply to a PEM file: set ssl.key.password instead"
                )
            found["ssl.certificate.location"] = found["ssl.key.location"] = found.pop("ssl.keystore.location")
        elif kind != "PKCS12":
            raise PipelineError(
                "[cluster] ssl.keystore.location must be a PKCS12 or PEM file (say which with ssl.keystore.type), "
                f"because librdkafka cannot read JKS. Convert it: keytool -importkeystore -srckeystore {store} "
                "-destkeystore client.p12 -deststoretype PKCS12"
            )
    return found


def _check_security(settings: Mapping[str, Value]) -> None:
    if "bootstrap.servers" not in settings:
        raise PipelineError('[cluster] bootstrap is missing: write bootstrap = "HOST:PORT"')
    protocol = _one_of("security.protocol", settings, _PROTOCOLS, "PLAINTEXT")
    mechanism = _one_of("sasl.mechanism", settings, _MECHANISMS, "")
    for prefix, advice in (("sasl", "SASL_SSL"), ("ssl", "SSL or SASL_SSL")):
        given = [name for name in settings if name.startswith(f"{prefix}.")]
        if given and prefix.upper() not in re.split("_", protocol):
            raise PipelineError(
                f"[cluster] {given[0]} does not apply to security.protocol {protocol}: remove it, or use {advice}"
            )
    if "SASL" in protocol and not mechanism:
        raise PipelineError(f"[cluster] sasl.mechanism is missing: use one of {', '.join(_MECHANISMS)}")
    needed: tuple[str, ...] = ()
    if mechanism == "PLAIN" or mechanism.startswith("SCRAM"):
        needed = ("sasl.username", "sasl.password")
    elif mechanism == "OAUTHBEARER":
        needed = tuple(f"sasl.oauthbearer.{name}" for name in ("token.endpoint.url", "client.id", "client.secret"))
    for name in needed:
        if name not in settings:
            raise PipelineError(f"[cluster] {name} is missing: sasl.mechanism {mechanism} needs it")


def _one_of(name: str, settings: Mapping[str, Value], allowed: Iterable[str], default: str) -> str:
    value = settings.get(name, default)
    if value != default and str(value) not in allowed:
        raise PipelineError(f"[cluster] {name} must be one of {', '.join(allowed)}, not '{value}'")
    return str(value)


def _read(settings: Mapping[str, Value]) -> dict[str, str]:
    return {
        name: value.read(f"[cluster] {name}") if isinstance(value, Secret) else value
        for name, value in settings.items()
    }


def _java_tls(settings: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    authority = _pem(settings, "ssl.ca")
    if authority is not None:
        trusted = _certificates(authority, settings, "ssl.ca")
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": trusted}
    certificate, key = _pem(settings, "ssl.certificate"), _pem(settings, "ssl.key")
    if (certificate is None) != (key is None):
        raise PipelineError("[cluster] ssl.certificate.location and ssl.key.location belong together: give both")
    if certificate is not None and key is not None:
        private = _PKCS8_KEY.search(key)
        if private is None:
            raise PipelineError(
                "[cluster] ssl.key.location or ssl.key.pem is not in PKCS#8, the only format of the Java client. "
                "Convert it: openssl pkcs8 -topk8 -nocrypt -in OLD -out NEW"
            )
        found |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _certificates(certificate, settings, "ssl.certificate"),
            "ssl.keystore.key": private[0],
        }
    elif "ssl.keystore.location" in settings:
        found |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": settings["ssl.keystore.location"]}
    for name in ("ssl.key.password", "ssl.keystore.password"):
        if name in settings:
            found[name] = settings[name]
    return found


def _pem(settings: Mapping[str, str], name: str) -> str | None:
    if f"{name}.location" in settings:
        return read_text(settings[f"{name}.location"], f"[cluster] {name}.location")
    return settings.get(f"{name}.pem")


def _certificates(text: str, settings: Mapping[str, str], name: str) -> str:
    found = _CERTIFICATE.findall(text)
    if not found:
        setting = f"{name}.location" if f"{name}.location" in settings else f"{name}.pem"
        raise PipelineError(f"[cluster] {setting} contains no certificate in PEM format")
    return "\n".join(found)


def _java_sasl(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the Java client's SASL settings: it takes user names and passwords only in `sasl.jaas.config`."""
    mechanism = settings.get("sasl.mechanism", "")
    if mechanism == "PLAIN" or mechanism.startswith("SCRAM"):
        module = f"{_SECURITY}.plain.PlainLoginModule"
        if mechanism != "PLAIN":
            module = f"{_SECURITY}.scram.ScramLoginModule"
        login = _jaas(module, username=settings["sasl.username"], password=settings["sasl.password"])
        return {"sasl.jaas.config": login}
    if mechanism == "OAUTHBEARER":
        options = {"clientId": settings["sasl.oauthbearer.client.id"]}
        options["clientSecret"] = settings["sasl.oauthbearer.client.secret"]
        if "sasl.oauthbearer.scope" in settings:
            options["scope"] = settings["sasl.oauthbearer.scope"]
        return {
            "sasl.jaas.config": _jaas(f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule", **options),
            "sasl.login.callback.handler.class": f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler",
        }
    if mechanism == "GSSAPI":
        options = {"useTicketCache": "true"}
        if "sasl.kerberos.keytab" in settings:
            options = {"useKeyTab": "true", "storeKey": "true", "keyTab": settings["sasl.kerberos.keytab"]}
        if "sasl.kerberos.principal" in settings:
            options["principal"] = settings["sasl.kerberos.principal"]
        login = _jaas("com.sun.security.auth.module.Krb5LoginModule", **options)
        # librdkafka's default; the Java client has none.
        return {"sasl.kerberos.service.name": "kafka", "sasl.jaas.config": login} | {
            name: settings[name] for name in ("sasl.kerberos.service.name",) if name in settings
        }
    return {}


def _jaas(module: str, **options: str) -> str:
    quoted = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in options.items()}
    return f"{module} required " + " ".join(f'{name}="{value}"' for name, value in quoted.items()) + ";"
