"""Usage errors in plain words: the option, its value, the valid values, and a suggestion.

Typer validates with pydantic, whose messages do not show the value. Suggestions for options and commands of Kafka's
tools are in `headrace.cli.habits`.
"""

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from typer import BadParameter, TyperException

from headrace.cli import habits
from headrace.cli.failures import USAGE, CommandError
from headrace.wording import is_utf8, printable

_NEAR = 0.7
_PATHS = ("DIR", "FILE")
"""Metavars of paths."""
_NAMES = ("TOPIC", "GROUP", "NAME")
"""Metavars of topics and groups."""
_KINDS = {"int": "a whole number", "float": "a number"}


@contextmanager
def explained(ctx: Any = None, args: Sequence[str] = ()) -> Iterator[None]:
    """Turn typer's errors into CommandError. `args` are the arguments that the command of `ctx` parses."""
    args = list(args)  # parsing consumes them
    try:
        yield
    except TyperException as error:
        # The help page has already been printed.
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        raise _explain(error, getattr(error, "ctx", None) or ctx, args) from None


def check_texts(ctx: Any) -> None:
    """Raise CommandError for arguments that crash client libraries: text that is not UTF-8, and empty names.

    Paths may contain any bytes.
    """
    for param in ctx.command.get_params(ctx):
        given = ctx.params.get(param.name)
        for value in given if isinstance(given, list | tuple) else [given]:
            if isinstance(value, str) and param.metavar not in _PATHS and not is_utf8(value):
                raise CommandError(f"{_name_of(param)}: '{printable(value)}' is not UTF-8", None, USAGE)
            if value == "" and param.metavar in _NAMES:
                raise CommandError(f"{_name_of(param)} is empty", None, USAGE)


def unknown_command(ctx: Any, args: Sequence[str]) -> CommandError:
    """Return the error for the unknown command `args[0]` in the group of `ctx`."""
    name, path = args[0], ctx.command_path
    hint = habits.for_command(path, list(args))
    if hint is None:
        near = difflib.get_close_matches(name, list(ctx.command.commands), n=2, cutoff=_NEAR)
        hint = f"Did you mean {' or '.join(f'`{path} {item}`' for item in near)}?" if near else None
    return CommandError(f"unknown command '{path} {name}'", hint or f"`{path} --help` lists the commands.", USAGE)


def _explain(error: Any, ctx: Any, args: list[str]) -> CommandError:
    path = ctx.command_path if ctx is not None else "headrace"
    see = f"`{path} --help` describes the command."
    kind = type(error).__name__
    if kind == "NoSuchOption":
        return _unknown_option(error.option_name, ctx, path, args)
    if kind == "MissingParameter":
        return CommandError(f"{_name(error)} is missing", see, USAGE)
    if isinstance(error, BadParameter):
        return CommandError(_bad_value(error), see, USAGE)
    message = error.message.rstrip(".")
    if kind == "BadOptionUsage":
        needs_value = "requires" in message
        return CommandError(f"{error.option_name} {'needs a value' if needs_value else 'takes no value'}", see, USAGE)
    if "extra argument" in message:
        extra = message.partition("(s) (")[2].removesuffix(")")
        return CommandError(f"unexpected argument: {extra}", habits.for_argument(path, extra) or see, USAGE)
    return CommandError(message[:1].lower() + message[1:], see, USAGE)


def _unknown_option(option: str, ctx: Any, path: str, args: list[str]) -> CommandError:
    what = f"`{path}` has no option {option}"
    hint = habits.for_option(path, option, args)
    if hint is None and ctx is not None:
        params = ctx.command.get_params(ctx)
        known = [name for param in params for name in (*param.opts, *param.secondary_opts) if name.startswith("--")]
        near = difflib.get_close_matches(option, known, n=2, cutoff=_NEAR)
        hint = f"Did you mean {' or '.join(near)}?" if near else None
    return CommandError(what, hint or f"`{path} --help` lists its options.", USAGE)


def _bad_value(error: Any) -> str:
    problem = _pydantic_problem(error)
    if problem is not None and error.param is not None:
        allowed = _allowed(problem, error.param)
        if allowed is not None:
            return f"{_name(error)} '{problem['input']}': must be {allowed}"
    message = str(error.message).removeprefix("Value error, ").removeprefix("dir ").rstrip(".")
    name = _name(error)
    return f"{name}: {message}" if name.startswith("-") else message


def _pydantic_problem(error: Any) -> Any:
    errors = getattr(error.__cause__, "errors", None)
    return errors()[0] if errors is not None else None


def _allowed(problem: Any, param: Any) -> str | None:
    """Describe the valid values of an option that takes numbers or one of several words."""
    low, high = getattr(param, "min", None), getattr(param, "max", None)
    if problem["type"] == "value_error":
        _, found, choices = problem["msg"].rstrip(".").partition(" is not one of ")
        return f"one of {choices.replace(chr(39), '')}" if found else None
    if problem["type"].startswith(("int_", "float_", "greater_", "less_", "finite_")):
        kind = "float" if isinstance(low, float) or problem["type"].startswith("float_") else "int"
        limits = [f"at least {low}"] * (low is not None) + [f"at most {high}"] * (high is not None)
        return ", ".join([_KINDS[kind], " and ".join(limits)] if limits else [_KINDS[kind]])
    return None


def _name(error: Any) -> str:
    if error.param_hint is not None:
        return str(error.param_hint).strip("'")
    return "" if error.param is None else _name_of(error.param)


def _name_of(param: Any) -> str:
    long = [name for name in param.opts if name.startswith("--")]
    return str(long[0] if long else param.metavar or param.name)
