from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec import params
from tests.unit.pipeline.example_jobs import JOBS, PAGE_VIEWS, SESSIONS, SessionParams, definition, sessions


def test_parameters_without_values_keep_their_defaults() -> None:
    assert params.build(SESSIONS, {}) == SessionParams()


def test_values_from_toml_replace_defaults() -> None:
    given = {"gap": "10 minutes", "minimum": 2, "share": 1, "humans_only": True, "key": "user", "label": "x"}
    built = params.build(SESSIONS, given)
    assert built == SessionParams(
        gap=params.Interval("10 minutes"), minimum=2, share=1.0, humans_only=True, key="user", label="x"
    )
    assert type(built.share) is float


def test_overrides_are_parsed_as_the_parameters_type() -> None:
    expected = {
        "gap=10 minutes": "10 minutes",
        "gap=1 hour 30 minutes": "1 hour 30 minutes",
        "minimum=5_000": 5000,
        "share=0.25": 0.25,
        "share=2": 2.0,
        "humans_only=true": True,
        "humans_only=No": False,
        "key=user": "user",
        "label=a=b": "a=b",
        "label=": "",
    }
    found = {text: params.overrides(JOBS, [f"sessions.{text}"]) for text in expected}
    # As text, because 2 == 2.0
    assert str(found) == str({text: {"sessions": {text.partition("=")[0]: expected[text]}} for text in expected})


def test_the_last_override_of_a_parameter_wins() -> None:
    assert params.overrides(JOBS, ["sessions.minimum=1", "sessions.minimum=2"]) == {"sessions": {"minimum": 2}}


def refusal(text: str) -> str:
    with pytest.raises(PipelineError) as refused:
        params.overrides(JOBS, [text])
    return str(refused.value)


def test_a_wrong_override_is_refused() -> None:
    assert "--set gap=10 minutes: write JOB.PARAM=VALUE" in refusal("gap=10 minutes")
    assert "write JOB.PARAM=VALUE" in refusal("sessions.gap")
    assert "no job 'sesions'. Did you mean 'sessions'? Known jobs: archive, page_views, sessions" in refusal(
        "sesions.gap=1 hour"
    )
    assert "job sessions: there is no parameter 'gpa'. Did you mean 'gap'? Known parameters: gap" in refusal(
        "sessions.gpa=1 hour"
    )
    assert "job sessions: parameter gap must be an interval such as '10 minutes', not 'soon'" in refusal(
        "sessions.gap=soon"
    )
    assert "an interval such as '10 minutes'" in refusal("sessions.gap=0 minutes")
    assert "an interval such as '10 minutes'" in refusal("sessions.gap=1 month")
    assert "an interval such as '10 minutes'" in refusal("sessions.gap=10minutes")
    assert "parameter minimum must be a whole number, not '1.5'" in refusal("sessions.minimum=1.5")
    assert "parameter share must be a number, not 'half'" in refusal("sessions.share=half")
    assert "parameter share must be a number" in refusal("sessions.share=nan")
    assert "parameter humans_only must be true or false, not 'maybe'" in refusal("sessions.humans_only=maybe")
    assert "parameter key must be one of client, user, not 'host'" in refusal("sessions.key=host")
    assert "job page_views has no parameters" in refusal("page_views.gap=1 hour")
    assert "set it under [jobs.sessions] in the deployment file" in refusal("sessions.trigger=1 second")


def test_a_value_of_another_type_is_refused() -> None:
    wrong = {"minimum": (True, "1"), "humans_only": (1,), "gap": (600,), "label": (1,), "key": ("host",)}
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(PipelineError, match=f"job sessions: parameter {name} must be .*, not {value!r}$"):
                params.build(SESSIONS, {name: value})


def test_a_parameter_of_an_unsupported_type_is_named() -> None:
    @dataclass(frozen=True)
    class Odd:
        pages: list[str] = field(default_factory=list)

    with pytest.raises(PipelineError, match="job sessions: parameter pages has the type list; use str, int"):
        params.known(definition(sessions, params=Odd))


def test_parameters_are_listed_with_defaults_and_allowed_values() -> None:
    listed: list[Any] = [(param.name, param.default, param.allowed) for param in params.known(SESSIONS)]
    assert listed[0] == ("gap", "30 minutes", "an interval such as '10 minutes'")
    assert listed[4] == ("key", "client", "one of client, user")
    assert params.known(PAGE_VIEWS) == ()


def test_intervals_have_a_length() -> None:
    seconds = {"10 seconds": 10, "1 Hour": 3600, "2 days 12 hours": 216_000, "500 milliseconds": 0.5, "0 seconds": 0}
    assert {interval: params.seconds_of(interval) for interval in seconds} == seconds
