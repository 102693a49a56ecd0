"""Patterns of client metrics subscriptions are validated in bounded time."""

import pytest

from headrace.config import ConfigError
from headrace.config.group import parse_client_metrics
from tests.support.speed import cpu_limit


def test_a_valid_pattern_is_accepted() -> None:
    for pattern in ("a.*", "(?=a)b", r"[\u0041-\u00ff]x", "[à-é]", "[a-z0-9]{8}"):
        assert parse_client_metrics({"match": f"client_id={pattern}"})["match"] == (f"client_id={pattern}",)


def test_a_bad_or_huge_pattern_is_refused_quickly() -> None:
    for pattern in ("(", "[", "(" * 5000, "a{99999999999999999999}", "(?i)[!-\uffff]" * 1000 + "(", "x" * 20_000):
        with cpu_limit(2), pytest.raises(ConfigError):
            pytest.fail(f"{pattern[:20]}: {parse_client_metrics({'match': f'client_id={pattern}'})}")
