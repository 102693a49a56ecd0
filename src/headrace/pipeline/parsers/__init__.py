"""Parsers: functions that read the values of records as requests to a web server.

A parser takes rows with the columns of `raw`, and adds the columns `FIELDS` and `reason`. The reason is null for a good
row; otherwise it says why the row is not a request. Any other columns that the parser adds become columns of `events`.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Parser: TypeAlias = Callable[[DataFrame], DataFrame]

FIELDS: Final = (
    "event_time",
    "client",
    "method",
    "path",
    "page",
    "protocol",
    "status",
    "bytes",
    "referer",
    "user_agent",
)
"""`event_time` is a timestamp, `status` an int, `bytes` a bigint; the others are strings. All may be null except
`event_time`, `client` and `status`. `page` is the path without its query."""

_BUILT_IN: Final = {
    "access-log": "headrace.pipeline.parsers.access_log:parsed",
    "json": "headrace.pipeline.parsers.json_lines:parsed",
}
_registered: "dict[str, Parser]" = {}


def parser(name: str) -> "Callable[[Parser], Parser]":
    """Register the decorated function as the parser `name`, for deployments that say `parser = "name"`.

    The module must be loaded with the jobs: by `--from FILE`, or by an entry point. A later function of the same name
    replaces an earlier one. Raises PipelineError for the name of a built-in parser.
    """
    if name in _BUILT_IN:
        raise PipelineError(f"parser '{name}' is built in: choose another name")

    def register(function: "Parser") -> "Parser":
        _registered[name] = function
        return function

    return register


def parser_of(name: str) -> "Parser":
    """Return the parser of that name, or the function that `module:function` names.

    Raises PipelineError if it does not exist.
    """
    if name in _registered:
        return _registered[name]
    known = ", ".join(sorted({*_BUILT_IN, *_registered}))
    module, colon, function = _BUILT_IN.get(name, name).partition(":")
    if not colon:
        raise PipelineError(f"no parser '{name}': use one of {known}, or module:function")
    try:
        found: Parser = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise PipelineError(
            f"parser '{name}' cannot be loaded ({error}): use one of {known}, or module:function"
        ) from error
    return found
