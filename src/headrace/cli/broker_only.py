"""The command line without typer: prints the version, the usage or an error. `__main__` runs valid `start` commands."""

import sys
from collections.abc import Sequence
from typing import Final

from headrace import __version__
from headrace.cli.failures import USAGE
from headrace.extras import install

_USAGE: Final = """\
Usage: headrace start [--data DIR] [--listen HOST:PORT] [--config FILE] [--set KEY=VALUE ...] [--until-eof]

Starts a broker; Ctrl-C stops it.
"""
_EXTRAS: Final = {"demo": "pipeline", "takeover": "zookeeper", "handover": "zookeeper"}
"""Extras of commands that need more than `cli`; both extras include `cli`."""
_OTHER_COMMANDS: Final = f"The other commands and the help pages need packages that are not installed: {install('cli')}"


def run(args: Sequence[str], package: str) -> int:
    """Report the missing `package`, or an error in the arguments of `headrace start`. Return the exit code."""
    if list(args) == ["--version"]:
        print(f"headrace {__version__}")
        return 0
    if not args or {"--help", "-h"} & set(args):
        print(f"{_USAGE}\n{_OTHER_COMMANDS}")
        return 0 if args else USAGE
    if args[0] == "start":
        print(f"Error: {_mistake(args[1:])}\n{_USAGE.splitlines()[0]}", file=sys.stderr)
        return USAGE
    command = install(_EXTRAS.get(args[0], "cli"))
    print(
        f"Error: `headrace {args[0]}` needs the package {package}, which is not installed. Install it with: {command}",
        file=sys.stderr,
    )
    return 1


def _mistake(args: Sequence[str]) -> str:
    from headrace.cli.start_args import UsageError, start_options

    values: dict[str, list[str]] = {"--data": [], "--listen": [], "--config": [], "--set": []}
    words = iter(args)
    for word in words:
        name, has_value, value = word.partition("=")
        if name == "--until-eof":
            continue
        if name not in values:
            return f"unknown option {word}"
        if not has_value:
            value = next(words, "")
        if not value:
            return f"{name} needs a value"
        values[name].append(value)
    try:
        start_options(None, values["--listen"][-1] if values["--listen"] else None, None, values["--set"])
    except UsageError as error:
        return str(error)
    return f"unexpected arguments: {' '.join(args)}"
