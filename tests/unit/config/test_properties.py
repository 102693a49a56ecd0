import pytest

from headrace.config.definition import ConfigError
from headrace.config.properties import parse_assignments, parse_environment, parse_properties


def test_properties_are_read_as_by_java() -> None:
    jaas = 'Module required user="x" password="y=z";'
    expected = {
        "a=1\nb : 2\nc 3\nd\t=\t4\ne\n": {"a": "1", "b": "2", "c": "3", "d": "4", "e": ""},
        # comments and empty lines
        "# a=1\n  ! b=2\n\n   \n c=3": {"c": "3"},
        # a backslash joins lines, and drops leading spaces; an even number of them ends the line
        "listeners=A://:1,\\\n    B://:2\n": {"listeners": "A://:1,B://:2"},
        "a=x\\\\\nb=y": {"a": "x\\", "b": "y"},
        "a=1,\\\n#2": {"a": "1,#2"},
        # escapes in keys and values
        "a\\:b\\ c=\\t\\u00e9\\q": {"a:b c": "\té" + "q"},
        # the last of a repeated key
        "a=1\na=2": {"a": "2"},
        "a=1\r\nb=2\r\n": {"a": "1", "b": "2"},
        f"sasl.jaas.config={jaas}": {"sasl.jaas.config": jaas},
    }
    assert {text: parse_properties(text) for text in expected} == expected


def test_the_error_for_a_malformed_line_has_its_number() -> None:
    for text, line in (("a=\\u12", 1), ("a=\\uzzzz", 1), ("ok=1\n=2", 2)):
        with pytest.raises(ConfigError, match=f"line {line}"):
            parse_properties(text)


def test_assignments_are_split_at_the_first_equals_sign() -> None:
    assert parse_assignments(["a=b=c", " d = e "]) == {"a": "b=c", "d": "e"}


def test_an_assignment_without_key_or_equals_sign_is_refused() -> None:
    for text in ("num.partitions", "=3", ""):
        with pytest.raises(ConfigError, match="key=value"):
            pytest.fail(f"{text!r}: {parse_assignments([text])}")


def test_environment_variables_are_settings_in_capitals() -> None:
    known = {"log.retention.ms", "a_b-c"}
    others = {"PATH": "/bin", "LOG_RETENTION_MS": "6", "HEADRACE_BOOTSTRAP": "x"}
    environment = {"HEADRACE_LOG_RETENTION_MS": "5", "HEADRACE_A__B___C": "x", **others}
    assert parse_environment(environment, known) == {"log.retention.ms": "5", "a_b-c": "x"}


def test_the_variables_of_kubernetes_services_are_ignored() -> None:
    environment = {
        f"{service}_{variable}": "tcp://10.0.0.1:9092"
        for service in ("HEADRACE", "HEADRACE_METRICS", "HEADRACE_ZOOKEEPER")
        for variable in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_9092_TCP_ADDR")
    }
    known = {"port", "metric.reporters", "zookeeper.connect", "log.retention.ms"}
    assert parse_environment({**environment, "HEADRACE_LOG_RETENTION_MS": "5"}, known) == {"log.retention.ms": "5"}


def test_misspelt_environment_variables_are_refused_together_with_suggestions() -> None:
    environment = {"HEADRACE_LOG_RETENTOIN_MS": "5", "HEADRACE_LOG_RETENTION_MSS": "5"}
    suggestion = r"Did you mean log\.retention\.ms.*"
    with pytest.raises(ConfigError, match=rf"(?s)2 settings.*RETENTOIN_MS.*{suggestion}RETENTION_MSS.*{suggestion}"):
        parse_environment(environment, {"log.retention.ms"})
