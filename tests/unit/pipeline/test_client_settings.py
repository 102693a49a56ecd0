import tomllib
from pathlib import Path
from typing import Literal

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec import client_settings
from headrace.pipeline.spec.client_settings import Cluster
from headrace.pipeline.spec.secret_values import is_secret

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIID\n-----END CERTIFICATE-----"
KEY = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----"
OLD_KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----"
PASSWORD = 'p"a\\ss'
SCRAM = """
security.protocol = "SASL_SSL"
sasl.mechanism = "SCRAM-SHA-512"
sasl.username = "me"
sasl.password = { env = "TEST_KAFKA_PASSWORD" }
"""


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KAFKA_PASSWORD", PASSWORD)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    files = {"ca.pem": CERTIFICATE, "client.pem": CERTIFICATE, "key.pem": KEY, "rsa.pem": OLD_KEY, "p12.txt": "secret"}
    for name, text in (files | {"both.pem": f"{KEY}\n{CERTIFICATE}\n"}).items():
        (tmp_path / name).write_text(text + "\n")
    return tmp_path


def cluster(text: str, directory: Path = Path("/etc/headrace"), *, bootstrap: str = 'bootstrap = "h:1"') -> Cluster:
    return client_settings.parse(tomllib.loads(f"{bootstrap}\n{text}"), directory)


def confluent(found: Cluster, kind: Literal["admin", "producer", "consumer"] = "admin") -> dict[str, str]:
    """Return the configuration without the brokers."""
    config = dict(found.confluent(kind))
    assert config.pop("bootstrap.servers") == "h:1"
    return config


def spark(found: Cluster) -> dict[str, str]:
    """Return the options without their prefix and without the brokers."""
    options = {name.removeprefix("kafka."): value for name, value in found.spark_options().items()}
    assert len(options) == len([name for name in found.spark_options() if name.startswith("kafka.")])
    assert options.pop("bootstrap.servers") == "h:1"
    return options


def test_without_security_both_clients_need_only_the_brokers() -> None:
    for found in (client_settings.plain("h:1"), cluster(""), cluster("", bootstrap='bootstrap.servers = "h:1"')):
        assert (spark(found), confluent(found)) == ({}, {})
        assert found.bootstrap == "h:1"


def test_settings_have_the_names_and_values_of_each_client() -> None:
    expected: dict[str, tuple[dict[str, str], dict[str, str]]] = {
        'client.id = "x"': ({"client.id": "x"}, {"client.id": "x"}),
        "request.timeout.ms = 5000": ({"request.timeout.ms": "5000"}, {"socket.timeout.ms": "5000"}),
        "socket.timeout.ms = 5000": ({"request.timeout.ms": "5000"}, {"socket.timeout.ms": "5000"}),
        "send.buffer.bytes = -1": ({"send.buffer.bytes": "-1"}, {"socket.send.buffer.bytes": "0"}),
        "receive.buffer.bytes = 9": ({"receive.buffer.bytes": "9"}, {"socket.receive.buffer.bytes": "9"}),
        "connections.max.idle.ms = -1": ({"connections.max.idle.ms": "-1"}, {"connections.max.idle.ms": "0"}),
        "max.request.size = 2000000": ({"max.request.size": "2000000"}, {"message.max.bytes": "2000000"}),
        "enable.metrics.push = false": ({"enable.metrics.push": "false"}, {"enable.metrics.push": "false"}),
        "[java]\nmax.block.ms = 5": ({"max.block.ms": "5"}, {}),
        '[librdkafka]\nbroker.address.family = "v4"': ({}, {"broker.address.family": "v4"}),
    }
    found = {setting: cluster(setting) for setting in expected}
    assert {setting: (spark(parsed), confluent(parsed)) for setting, parsed in found.items()} == expected


def test_a_librdkafka_client_gets_only_settings_of_its_kind() -> None:
    found = cluster("linger.ms = 5\nfetch.max.wait.ms = 100\nclient.id = 'x'")
    assert confluent(found, "admin").keys() == {"client.id"}
    assert confluent(found, "producer") == {"client.id": "x", "linger.ms": "5"}
    assert confluent(found, "consumer") == {"client.id": "x", "fetch.wait.max.ms": "100"}


def test_a_password_becomes_a_login_of_the_java_client() -> None:
    found = cluster(SCRAM)
    assert spark(found) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="p\\"a\\\\ss";',
    }
    assert confluent(found) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": PASSWORD,
    }


def test_names_of_protocols_and_mechanisms_may_be_in_small_letters() -> None:
    found = cluster(SCRAM.replace("SASL_SSL", "sasl_plaintext").replace("SCRAM-SHA-512", "plain"))
    assert spark(found)["security.protocol"] == "SASL_PLAINTEXT"
    assert "plain.PlainLoginModule required" in spark(found)["sasl.jaas.config"]


def test_an_oauth_login_is_configured_for_both_clients() -> None:
    found = cluster(
        """
        security.protocol = "SASL_SSL"
        sasl.mechanism = "OAUTHBEARER"
        sasl.oauthbearer.token.endpoint.url = "https://id.example/token"
        sasl.oauthbearer.client.id = "me"
        sasl.oauthbearer.client.secret = { env = "TEST_KAFKA_PASSWORD" }
        sasl.oauthbearer.scope = "kafka"
        """
    )
    options = spark(found)
    assert 'clientId="me" clientSecret="p\\"a\\\\ss" scope="kafka";' in options["sasl.jaas.config"]
    assert options["sasl.login.callback.handler.class"].endswith("OAuthBearerLoginCallbackHandler")
    assert options["sasl.oauthbearer.token.endpoint.url"] == "https://id.example/token"
    assert confluent(found)["sasl.oauthbearer.method"] == "oidc"
    assert confluent(found)["sasl.oauthbearer.client.secret"] == PASSWORD


def test_a_kerberos_login_is_configured_for_both_clients() -> None:
    found = cluster(
        'security.protocol = "SASL_SSL"\nsasl.mechanism = "GSSAPI"\n'
        'sasl.kerberos.keytab = "me.keytab"\nsasl.kerberos.principal = "me@EXAMPLE"'
    )
    assert 'keyTab="/etc/headrace/me.keytab" principal="me@EXAMPLE";' in spark(found)["sasl.jaas.config"]
    assert spark(found)["sasl.kerberos.service.name"] == "kafka"
    assert confluent(found)["sasl.kerberos.keytab"] == "/etc/headrace/me.keytab"


def test_certificates_in_files_reach_workers_as_text(directory: Path) -> None:
    as_in_librdkafka = (
        'ssl.ca.location = "ca.pem"\nssl.certificate.location = "client.pem"\nssl.key.location = "key.pem"'
    )
    by_names_of_files = 'ssl.truststore.location = "ca.pem"\nssl.keystore.location = "both.pem"'
    as_in_java = f'{by_names_of_files}\nssl.truststore.type = "PEM"\nssl.keystore.type = "PEM"'
    for text in (as_in_librdkafka, as_in_java, by_names_of_files):
        found = cluster(f'security.protocol = "SSL"\n{text}', directory)
        assert spark(found) == {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": CERTIFICATE,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": CERTIFICATE,
            "ssl.keystore.key": KEY,
        }
        config = confluent(found)
        assert config["ssl.ca.location"] == str(directory / "ca.pem")
        in_files = {"ssl.ca.location", "ssl.certificate.location", "ssl.key.location"}
        assert config.keys() == {"security.protocol", *in_files}


def test_a_pkcs12_key_store_is_for_both_clients(directory: Path) -> None:
    found = cluster(
        'security.protocol = "SSL"\nssl.keystore.location = "c.p12"\nssl.keystore.password = { file = "p12.txt" }',
        directory,
    )
    assert spark(found)["ssl.keystore.type"] == "PKCS12"
    for settings in (spark(found), confluent(found)):
        assert settings["ssl.keystore.location"] == str(directory / "c.p12")
        assert settings["ssl.keystore.password"] == "secret"


def test_host_name_verification_is_spelled_differently_by_each_client() -> None:
    setting = "ssl.endpoint.identification.algorithm"
    for given, java, librdkafka in (("none", "", "none"), ("", "", "none"), ("https", "https", "https")):
        found = cluster(f'security.protocol = "SSL"\n{setting} = "{given}"')
        assert (spark(found)[setting], confluent(found)[setting]) == (java, librdkafka)


def test_secrets_are_read_late_and_never_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_KAFKA_PASSWORD")
    found = cluster(SCRAM)
    with pytest.raises(PipelineError, match=r"sasl\.password is in the environment variable TEST_KAFKA_PASSWORD"):
        found.spark_options()
    monkeypatch.setenv("TEST_KAFKA_PASSWORD", "hunter2")
    shown = repr(found) + str(found) + repr(found.spark_options()) + str(found.confluent("admin"))
    assert "hunter2" in spark(found)["sasl.jaas.config"]
    assert "hunter2" not in shown
    assert "TEST_KAFKA_PASSWORD" in shown


def refusal(text: str) -> str:
    with pytest.raises(PipelineError) as refused:
        cluster(text)
    return str(refused.value)


def test_settings_that_cannot_work_are_refused() -> None:
    assert "there is no setting 'security.protocl'. Did you mean 'security.protocol'?" in refusal(
        'security.protocl = "SSL"'
    )
    assert "must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, not 'TLS'" in refusal('security.protocol = "TLS"')
    assert "[cluster.java] there is no setting 'linger'" in refusal("[java]\nlinger = 5")
    assert "[cluster.librdkafka] there is no setting 'max.block.ms'" in refusal("[librdkafka]\nmax.block.ms = 5")
    assert "[cluster] java must be a table" in refusal("java = 5")
    assert "set it under [cluster.librdkafka], which is for confluent-kafka alone" in refusal(
        'broker.address.family = "v4"'
    )
    assert "set it under [cluster.java], which is for Spark alone" in refusal("max.block.ms = 5")
    assert "auto.offset.reset is set by the pipeline itself: remove it" in refusal('auto.offset.reset = "latest"')
    assert "group.id is set by the pipeline itself" in refusal('[java]\ngroup.id = "g"')
    assert "request.timeout.ms and socket.timeout.ms are the same" in refusal(
        "request.timeout.ms = 1\nsocket.timeout.ms = 2"
    )
    assert "linger.ms must be a string, a number, true or false" in refusal("linger.ms = [1]")
    assert "give sasl.mechanism, sasl.username and sasl.password instead" in refusal('sasl.jaas.config = { env = "X" }')
    assert "sasl.username does not apply to security.protocol PLAINTEXT: remove it, or use" in refusal(
        'sasl.username = "me"'
    )
    assert "ssl.ca.location does not apply to security.protocol PLAINTEXT" in refusal('ssl.ca.location = "ca.pem"')
    assert "sasl.mechanism is missing" in refusal('security.protocol = "SASL_SSL"')
    assert "sasl.username is missing" in refusal('security.protocol = "SASL_SSL"\nsasl.mechanism = "PLAIN"')
    assert "endpoint.url is missing" in refusal('security.protocol = "SASL_SSL"\nsasl.mechanism = "OAUTHBEARER"')
    assert "librdkafka cannot read Java trust stores" in refusal(
        'security.protocol = "SSL"\nssl.truststore.location = "t.jks"'
    )
    assert "must be a PKCS12 or PEM file" in refusal('security.protocol = "SSL"\nssl.keystore.location = "k.jks"')


def test_a_secret_in_plain_text_is_refused_and_not_repeated() -> None:
    message = refusal('sasl.password = "hunter2"')
    assert "sasl.password is a secret in plain text: write sasl.password = { env = " in message
    assert "hunter2" not in message


def test_a_secret_comes_from_one_environment_variable_or_one_file() -> None:
    for value in ('{ env = "A", file = "b" }', "{ file = 5 }", '{ env = "" }', '{ env = "A", x = "b" }'):
        assert 'sasl.password must be { env = "NAME" } or' in refusal(f"sasl.password = {value}")


def test_unusable_certificates_are_refused(directory: Path) -> None:
    def reason(text: str) -> str:
        found = cluster(f'security.protocol = "SSL"\n{text}', directory)
        with pytest.raises(PipelineError) as refused:
            found.spark_options()
        return str(refused.value)

    missing = f"ssl.ca.location: cannot read {directory / 'missing.pem'}: no such file"
    assert missing in reason('ssl.ca.location = "missing.pem"')
    assert "ssl.ca.location contains no certificate" in reason('ssl.ca.location = "key.pem"')
    assert "ssl.key.location belong together" in reason('ssl.certificate.location = "client.pem"')
    assert "openssl pkcs8 -topk8" in reason('ssl.certificate.location = "client.pem"\nssl.key.location = "rsa.pem"')


def test_secrets_are_known_by_their_names() -> None:
    secrets = {
        "sasl.password": True,
        "ssl.key.password": True,
        "ssl.keystore.key": True,
        "ssl.key.pem": True,
        "sasl.oauthbearer.client.secret": True,
        "spark.hadoop.fs.s3a.secret.key": True,
        "spark.hadoop.fs.s3a.access.key": True,
        "spark.hadoop.fs.azure.account.key.a.net": True,
        "spark.kubernetes.driver.secrets.kafka": False,
        "spark.hadoop.fs.s3a.aws.credentials.provider": False,
        "ssl.key.location": False,
        "sasl.oauthbearer.token.endpoint.url": False,
        "partitioner.ignore.keys": False,
    }
    assert {name: is_secret(name) for name in secrets} == secrets
