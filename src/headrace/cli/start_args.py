"""The options of `headrace start`, and a parser for them without expensive imports.

Importing typer and rich takes longer than starting the broker. Help pages and usage errors go to typer
(`cli/main.py`), which declares the same options: docs/decisions/020-start-without-typer.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.wording import is_utf8

_PATHS: Final = ("--data", "--config")


class UsageError(ValueError):
    """An option with an invalid value. The text says what is valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """The command line; None leaves the choice to the settings file and the defaults."""

    data: str | None = None
    """Directory for the log, as typed."""
    listen: tuple[str, int] | None = None
    """Host (without brackets) and port; 0 means any free port."""
    config: str | None = None
    """Path of a server.properties file, as typed."""
    settings: dict[str, str] = field(default_factory=dict)
    """Kafka's setting names and values; the last of a repeated name wins."""
    until_eof: bool = False
    """Stop the broker at the end of standard input."""


def start_options(
    data: str | None, listen: str | None, config: str | None, settings: Sequence[str], *, until_eof: bool = False
) -> StartOptions:
    """Parse `--listen` and `--set`. Raises UsageError."""
    return StartOptions(
        data=data,
        listen=None if listen is None else _host_and_port(listen),
        config=config,
        settings=dict(_setting(text) for text in settings),
        until_eof=until_eof,
    )


def parse(args: Sequence[str]) -> StartOptions | None:
    """Return the options, or None to leave `args` to typer: help, an unknown option, an invalid value."""
    single: dict[str, str] = {}
    settings: list[str] = []
    until_eof = False
    words = iter(args)
    for word in words:
        if word == "--until-eof":
            until_eof = True
            continue
        name, has_value, value = word.partition("=")
        if not has_value:
            value = next(words, "")
        # A value that looks like an option is a mistake or `--set --help`: leave it to typer.
        if not value or value.startswith("-"):
            return None
        if name not in _PATHS and not is_utf8(value):
            return None
        if name == "--set":
            settings.append(value)
        elif name == "--listen" or name in _PATHS:
            single[name] = value
        else:
            return None
    try:
        return start_options(
            single.get("--data"), single.get("--listen"), single.get("--config"), settings, until_eof=until_eof
        )
    except UsageError:
        return None


def _host_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        raise UsageError(
            f"--listen: '{text}' is not HOST:PORT with a port up to 65535;"
            " for example 127.0.0.1:9092, or 127.0.0.1:0 for any free port"
        )
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise UsageError(f"--listen: '{text}' is ambiguous: put an IPv6 address in brackets, as in [::1]:9092")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--set: '{text}' is not KEY=VALUE; for example log.retention.hours=24")
    return name.strip(), value.strip()
