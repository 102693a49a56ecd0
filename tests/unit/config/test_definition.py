import pytest

from headrace.config import BROKER_SETTINGS, TOPIC_SETTINGS, ConfigError, Setting
from headrace.config.definition import BOOLEAN, DOUBLE, INT, LIST, LONG, PASSWORD, SHORT, at_least
from headrace.config.group import CLIENT_METRICS_SETTINGS, GROUP_SETTINGS

ALL = [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values(), *GROUP_SETTINGS.values(), *CLIENT_METRICS_SETTINGS.values()]


def test_defaults_are_valid_and_survive_formatting() -> None:
    for setting in ALL:
        text = setting.format(setting.default)
        assert text is None or setting.parse(text) == setting.default, setting.name


def test_documentation_is_one_or_two_sentences() -> None:
    for setting in ALL:
        assert setting.documentation.endswith((".", ".*")), setting.name
        assert 10 < len(setting.documentation) < 300, setting.name


def test_a_value_of_the_wrong_type_is_refused() -> None:
    wrong = [
        (INT, "1.5"),
        (INT, ""),
        (INT, "1_000"),
        (INT, str(2**31)),
        (SHORT, "40000"),
        (LONG, str(2**63)),
        (DOUBLE, "x"),
        (BOOLEAN, "yes"),
    ]
    for kind, text in wrong:
        with pytest.raises(ConfigError, match=r"some\.key: must be"):
            pytest.fail(f"{text}: {Setting('some.key', kind, None, '').parse(text)}")


def test_the_error_for_a_value_out_of_range_has_the_limits() -> None:
    with pytest.raises(ConfigError, match=r"'0' for a: must be a whole number \(32 bits\), at least 1$"):
        Setting("a", INT, 1, "", at_least(1)).parse("0")


def test_values_are_trimmed_booleans_ignore_case_and_lists_are_split_and_deduplicated() -> None:
    parsed = [
        Setting("a", kind, None, "").parse(text)
        for kind, text in ((INT, " 7 "), (BOOLEAN, "TRUE"), (LIST, "a , b,a"), (LIST, ""))
    ]
    assert parsed == [7, True, ("a", "b"), ()]


def test_errors_do_not_contain_secrets() -> None:
    error = Setting("ssl.key.password", PASSWORD, None, "").refuse("hunter2")
    assert "hunter2" not in str(error)


def test_numbers_are_formatted_like_kafkas() -> None:
    setting = BROKER_SETTINGS["log.cleaner.io.max.bytes.per.second"]
    assert setting.format(setting.default) == "1.7976931348623157E308"
    longest = Setting("a", LONG, None, "")
    for value in (-(2**63), -1, 0, 2**63 - 1):
        assert longest.format(value) == str(value)
        assert longest.parse(str(value)) == value
