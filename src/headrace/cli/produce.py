"""`headrace produce`: write records from files or standard input to a topic."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace import clock
from headrace.cli import output
from headrace.cli.failures import missing_topic, usage_error
from headrace.cli.help_pages import examples
from headrace.cli.options import DEFAULT_BOOTSTRAP, MAX_NUMBER, Bootstrap, Json, Quiet, key_and_value
from headrace.cli.positions import parse_moment

if TYPE_CHECKING:
    from headrace.cli.cluster import Cluster


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    NONE = "0"
    LEADER = "1"
    ALL = "all"


EPILOG = examples(
    "one record per line",
    "headrace produce access-log /var/log/nginx/access.log",
    "from standard input, with keys before a colon",
    "echo 'alice:bought tea' | headrace produce orders --key-separator :",
    "copy a topic with keys, headers and timestamps",
    "headrace consume orders -e --jsonl | headrace produce copy --jsonl --create",
    "a tombstone for one key",
    'echo \'{"key": "alice", "value": null}\' | headrace produce profiles --jsonl',
)


_LINES = "Format of a line"
_DELIVERY = "Delivery"


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, help="Name of the topic.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", show_default="standard input", help="Files to read, '-' for standard input."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="TEXT", show_default=False, help="Key of all records.")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator",
            "-K",
            metavar="TEXT",
            show_default=False,
            rich_help_panel=_LINES,
            help="Text between key and value in a line; \\t is a tab.",
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="KEY=VALUE", show_default=False, help="Header to add to all records; repeatable."
        ),
    ] = None,
    jsonl: Annotated[
        bool,
        typer.Option(
            "--jsonl", rich_help_panel=_LINES, help="Lines are JSON objects, as printed by `consume --jsonl`."
        ),
    ] = False,
    null: Annotated[
        str | None,
        typer.Option(
            "--null",
            metavar="TEXT",
            show_default=False,
            rich_help_panel=_LINES,
            help="Text that means a null key or value.",
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", min=0, show_default="by key, or any", metavar="N", help="Partition of all records."
        ),
    ] = None,
    keep_partitions: Annotated[
        bool,
        typer.Option("--keep-partitions", rich_help_panel=_LINES, help="With --jsonl: use the partition in the line."),
    ] = False,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--timestamp",
            metavar="TIME",
            show_default="the line's own, or now",
            help="Timestamp of all records: 2026-11-21T09:30:00Z, @MILLISECONDS or 15m ago.",
        ),
    ] = None,
    compression: Annotated[
        Compression,
        typer.Option(
            "--compression", "-z", rich_help_panel=_DELIVERY, metavar="CODEC", help="none, gzip, snappy, lz4 or zstd."
        ),
    ] = Compression.NONE,
    acks: Annotated[
        Acks,
        typer.Option(
            "--acks",
            rich_help_panel=_DELIVERY,
            metavar="0|1|all",
            help="Acknowledgements to wait for: none, the leader's, or those of all in-sync replicas.",
        ),
    ] = Acks.ALL,
    idempotent: Annotated[
        bool | None,
        typer.Option(
            "--idempotent/--no-idempotent",
            rich_help_panel=_DELIVERY,
            show_default="with --acks all",
            help="Prevent duplicates and reordering by retries.",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=0.1,
            max=MAX_NUMBER // 1000,
            rich_help_panel=_DELIVERY,
            help="Fail if a record is not acknowledged within this time.",
        ),
    ] = 30.0,
    create: Annotated[bool, typer.Option("--create", help="Create the topic if it does not exist.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Write records to a topic, one per line, from files or standard input."""
    now_ms = clock.now_ms()
    if jsonl and (key is not None or key_separator is not None or null is not None):
        raise usage_error(
            "--jsonl cannot be combined with --key, --key-separator or --null",
            "JSON lines have their own keys and nulls.",
        )
    if key is not None and key_separator is not None:
        raise usage_error("--key and --key-separator cannot be combined")
    if keep_partitions and (not jsonl or partition is not None):
        raise usage_error("--keep-partitions needs --jsonl, and cannot be combined with --partition")
    if key_separator == "":
        raise usage_error("--key-separator is empty", "For example --key-separator : or --key-separator '\\t'.")
    if idempotent is None:
        # As in Kafka's producers since 3.0 (KIP-679).
        idempotent = acks is Acks.ALL
    elif idempotent and acks is not Acks.ALL:
        raise usage_error(f"--idempotent needs --acks all, not {acks.value}")

    # Imported late: loading the client library would delay the help page.
    from headrace.cli.cluster import Cluster
    from headrace.cli.record_sources import LineFormat, open_sources
    from headrace.cli.sending import Defaults, SenderOptions, send

    line_format = LineFormat(jsonl=jsonl, key_separator=key_separator, null=null, now_ms=now_ms)
    defaults = Defaults(
        key=None if key is None else key.encode(),
        headers=[(name, value.encode()) for name, value in (key_and_value(text, "--header") for text in header or ())],
        partition=partition,
        keep_partitions=keep_partitions,
        timestamp_ms=None if timestamp is None else _timestamp(timestamp, now_ms),
    )
    options = SenderOptions(
        compression=compression.value, acks=acks.value, idempotent=idempotent, timeout_s=timeout, quiet=quiet
    )
    with open_sources(files or [Path("-")]) as sources:
        _check_topic(Cluster.connect(bootstrap), topic, partition, create)
        sent = send(bootstrap, topic, sources, line_format, defaults, options)
    if json:
        output.print_json(sent.as_json())
    if not quiet:
        output.tell(sent.summary())
    if sent.interrupted:
        raise KeyboardInterrupt


def _check_topic(cluster: "Cluster", topic: str, partition: int | None, create: bool) -> None:
    """Raise CommandError if the topic or partition does not exist: a typing error must not create a topic.

    With `create`, create the topic instead.
    """
    from confluent_kafka.admin import NewTopic

    if not cluster.exists(topic):
        if not create:
            known = cluster.topic_names()
            raise missing_topic(topic, cluster.bootstrap, known, "--create creates it.")
        cluster.create(NewTopic(topic))
    if partition is not None:
        cluster.partitions(topic, partition)


def _timestamp(text: str, now_ms: int) -> int:
    from headrace.cli.json_lines import ZERO_TIMESTAMP

    try:
        found = parse_moment(f"@{text}" if text.isascii() and text.isdigit() else text, now_ms)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--timestamp'") from None
    if found == 0:
        raise typer.BadParameter(f"the timestamp is 0, {ZERO_TIMESTAMP}", param_hint="'--timestamp'")
    return found
