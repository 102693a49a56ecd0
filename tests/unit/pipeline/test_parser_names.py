"""Names of parsers in a deployment."""

import json
from typing import Any

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.parsers import parser, parser_of


def own(raw: Any) -> Any:
    return raw


def test_a_registered_parser_is_found_by_its_name() -> None:
    parser("test-own")(own)
    assert parser_of("test-own") is own


def test_a_parser_is_found_by_module_and_function() -> None:
    loads: object = json.loads
    assert parser_of("json:loads") is loads


def test_a_built_in_name_cannot_be_taken() -> None:
    with pytest.raises(PipelineError, match="'json' is built in: choose another name"):
        parser("json")


def test_a_parser_that_does_not_exist_is_refused() -> None:
    with pytest.raises(PipelineError, match="no parser 'nginx': use one of access-log, json"):
        parser_of("nginx")
    for name in ("headrace.nothing:parsed", "json:nothing"):
        with pytest.raises(PipelineError, match=f"parser '{name}' cannot be loaded"):
            parser_of(name)
