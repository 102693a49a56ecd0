"""The options of `headrace start`, and a parser for them that costs no import.

Typer and rich take longer to import than the broker takes to start, so a plain command line is read here. Help pages,
mistakes and everything else this parser does not understand go to typer (`cli/main.py`), which knows the same options:
docs/decisions/020-start-without-typer.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.wording import is_utf8

_PATHS: Final = ("--data", "--config")


class UsageError(ValueError):
    """An option whose value cannot be meant; the text says what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """What the command line says; None where it leaves the choice to the settings file and the defaults."""

    data: str | None = None
    """Directory for the log, as typed."""
    listen: tuple[str, int] | None = None
    """Host (without brackets) and port; port 0 asks the system for a free one."""
    config: str | None = None
    """Path of a server.properties file, as typed."""
    settings: dict[str, str] = field(default_factory=dict)
    """Kafka's setting names and their values; the last of a repeated name counts."""
    until_eof: bool = False
    """Whether the end of standard input stops the broker."""


def start_options(
    data: str | None, listen: str | None, config: str | None, settings: Sequence[str], *, until_eof: bool = False
) -> StartOptions:
    """The options with `--listen` and `--set` taken apart; raises UsageError."""
    return StartOptions(
        data=data,
        listen=None if listen is None else _host_and_port(listen),
        config=config,
        settings=dict(_setting(text) for text in settings),
        until_eof=until_eof,
    )


def parse(args: Sequence[str]) -> StartOptions | None:
    """The options, or None where typer has to say more about `args`: help, an unknown option, a bad value."""
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
        # A value that looks like an option is either a mistake or `--set --help`: typer decides.
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
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(
            f"--listen: '{text}' is not HOST:PORT; for example 127.0.0.1:9092, or 127.0.0.1:0 for any free port"
        )
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise UsageError(f"--listen: '{text}' is ambiguous: put an IPv6 address in brackets, as in [::1]:9092")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--set: '{text}' is not KEY=VALUE; for example log.retention.hours=24")
    return name.strip(), value.strip()
