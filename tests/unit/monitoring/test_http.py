"""The format of /metrics."""

from headrace.metrics import gauge
from headrace.monitoring import http


def test_a_usable_version_is_chosen_and_others_mean_the_default_format() -> None:
    unusable = [
        'text/plain; version="0.0.4"',
        "text/plain;version=abc",
        "text/plain;version=1.x;escaping=zz",
        'application/openmetrics-text; version="1.0.0"',
        "application/openmetrics-text;version=x",
    ]
    families = [gauge("g", "A gauge.", 1)]
    default = http._exposition(families, "")
    assert {accept: http._exposition(families, accept) for accept in unusable} == dict.fromkeys(unusable, default)
    assert default.content_type.startswith("text/plain; version=0.0.4")
    assert b"g 1.0" in default.body
    answer = http._exposition([], "application/openmetrics-text; version=1.0.0")
    assert answer.content_type.startswith("application/openmetrics-text")
