"""Options that several commands share, so that they are called and explained alike."""

from typing import Annotated

import typer

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
MAX_PARTITIONS = 100_000
"""What librdkafka sends as a number of partitions; brokers stop earlier."""
MAX_REPLICAS = 10_000
MAX_NUMBER = 2**31 - 1
"""Kafka's int32, as of partitions and timeouts in ms."""

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="HEADRACE_BOOTSTRAP",
        metavar="HOST:PORT",
        help="A broker of the cluster; several, separated by commas, where one may be down.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on standard error but errors.")]


def key_and_value(text: str, option: str) -> tuple[str, str]:
    """`KEY=VALUE` taken apart; raises typer.BadParameter that names the option."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"'{text}' is not KEY=VALUE", param_hint=f"'{option}'")
    return name, value
