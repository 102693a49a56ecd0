import pytest

from headrace.config.definition import ConfigError
from headrace.config.properties import parse_assignments, parse_environment, parse_properties


def test_keys_and_values_are_separated_by_equals_sign_colon_or_space() -> None:
    text = "a=1\nb : 2\nc 3\nd\t=\t4\ne\n"
    assert parse_properties(text) == {"a": "1", "b": "2", "c": "3", "d": "4", "e": ""}


def test_comments_and_empty_lines_are_ignored() -> None:
    assert parse_properties("# a=1\n  ! b=2\n\n   \n c=3") == {"c": "3"}


def test_a_backslash_joins_lines_and_drops_leading_spaces() -> None:
    assert parse_properties("listeners=A://:1,\\\n    B://:2\n") == {"listeners": "A://:1,B://:2"}


def test_an_even_number_of_backslashes_ends_the_line() -> None:
    assert parse_properties("a=x\\\\\nb=y") == {"a": "x\\", "b": "y"}


def test_a_comment_sign_in_a_continued_line_is_text() -> None:
    assert parse_properties("a=1,\\\n#2") == {"a": "1,#2"}


def test_escapes_are_resolved_in_keys_and_values() -> None:
    assert parse_properties("a\\:b\\ c=\\t\\u00e9\\q") == {"a:b c": "\té" + "q"}


def test_the_last_of_a_repeated_key_wins() -> None:
    assert parse_properties("a=1\na=2") == {"a": "2"}


def test_windows_line_endings_are_not_part_of_the_value() -> None:
    assert parse_properties("a=1\r\nb=2\r\n") == {"a": "1", "b": "2"}


def test_values_may_contain_equals_signs() -> None:
    text = 'sasl.jaas.config=Module required user="x" password="y=z";'
    assert parse_properties(text) == {"sasl.jaas.config": 'Module required user="x" password="y=z";'}


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uzzzz", "ok=1\n=2"])
def test_the_error_for_a_malformed_line_has_its_number(text: str) -> None:
    with pytest.raises(ConfigError, match=r"line \d"):
        parse_properties(text)


def test_assignments_are_split_at_the_first_equals_sign() -> None:
    assert parse_assignments(["a=b=c", " d = e "]) == {"a": "b=c", "d": "e"}


@pytest.mark.parametrize("text", ["num.partitions", "=3", ""])
def test_an_assignment_without_key_or_equals_sign_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="key=value"):
        parse_assignments([text])


def test_environment_variables_are_settings_in_capitals() -> None:
    known = {"log.retention.ms", "a_b-c"}
    environment = {"HEADRACE_LOG_RETENTION_MS": "5", "HEADRACE_A__B___C": "x", "PATH": "/bin", "LOG_RETENTION_MS": "6"}
    assert parse_environment(environment, known) == {"log.retention.ms": "5", "a_b-c": "x"}


def test_other_environment_variables_with_the_prefix_are_ignored() -> None:
    assert parse_environment({"HEADRACE_BOOTSTRAP": "x"}, {"log.retention.ms"}) == {}


def test_the_variables_of_kubernetes_services_are_ignored() -> None:
    environment = {
        f"{service}_{variable}": "tcp://10.0.0.1:9092"
        for service in ("HEADRACE", "HEADRACE_METRICS", "HEADRACE_ZOOKEEPER")
        for variable in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_9092_TCP_ADDR")
    }
    known = {"port", "metric.reporters", "zookeeper.connect", "log.retention.ms"}
    assert parse_environment({**environment, "HEADRACE_LOG_RETENTION_MS": "5"}, known) == {"log.retention.ms": "5"}


def test_the_error_for_a_misspelt_environment_variable_suggests_the_right_name() -> None:
    with pytest.raises(ConfigError, match=r"HEADRACE_LOG_RETENTOIN_MS.*Did you mean log\.retention\.ms"):
        parse_environment({"HEADRACE_LOG_RETENTOIN_MS": "5"}, {"log.retention.ms"})


def test_misspelt_environment_variables_are_refused_together() -> None:
    environment = {"HEADRACE_LOG_RETENTOIN_MS": "5", "HEADRACE_LOG_RETENTION_MSS": "5"}
    with pytest.raises(ConfigError, match=r"(?s)2 settings.*RETENTOIN_MS.*RETENTION_MSS"):
        parse_environment(environment, {"log.retention.ms"})
