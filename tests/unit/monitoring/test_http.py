"""The format of /metrics."""

import pytest

from headrace.metrics import gauge
from headrace.monitoring import http


@pytest.mark.parametrize(
    "accept",
    [
        'text/plain; version="0.0.4"',
        "text/plain;version=abc",
        "text/plain;version=1.x;escaping=zz",
        'application/openmetrics-text; version="1.0.0"',
        "application/openmetrics-text;version=x",
    ],
)
def test_an_unusable_version_means_the_default_format(accept: str) -> None:
    families = [gauge("g", "A gauge.", 1)]
    answer = http._exposition(families, accept)
    assert answer == http._exposition(families, "")
    assert answer.content_type.startswith("text/plain; version=0.0.4")
    assert b"g 1.0" in answer.body


def test_a_usable_version_is_chosen() -> None:
    answer = http._exposition([], "application/openmetrics-text; version=1.0.0")
    assert answer.content_type.startswith("application/openmetrics-text")
