"""Options that several commands share."""

from typing import Annotated

import typer

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
MAX_PARTITIONS = 100_000
"""librdkafka's limit; brokers have lower limits."""
MAX_REPLICAS = 10_000
MAX_NUMBER = 2**31 - 1
"""Maximum of Kafka's int32, the type of partitions and timeouts in ms."""

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="HEADRACE_BOOTSTRAP",
        metavar="HOST:PORT",
        help="A broker of the cluster, or several separated by commas.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Suppress all messages except errors.")]


def key_and_value(text: str, option: str) -> tuple[str, str]:
    """Split KEY=VALUE. Raises typer.BadParameter, naming the option."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"'{text}' is not KEY=VALUE", param_hint=f"'{option}'")
    return name, value
