"""`headrace topics`: list, create, describe, delete and alter topics."""

import difflib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import output
from headrace.cli.failures import CommandError, missing_topic, usage_error
from headrace.cli.help_pages import Command, Group, examples
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    MAX_PARTITIONS,
    MAX_REPLICAS,
    Bootstrap,
    Json,
    Quiet,
    key_and_value,
)
from headrace.cli.output import Column

if TYPE_CHECKING:
    from headrace.cli.cluster import Cluster

app = typer.Typer(cls=Group, no_args_is_help=True, help="List, create, describe, change and delete topics.")

Topic = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, help="Name of the topic.")]
Topics = Annotated[list[str], typer.Argument(metavar="TOPIC", show_default=False, help="Names of topics.")]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="KEY=VALUE",
        show_default=False,
        help="Topic setting, for example retention.ms=3600000; repeatable.",
    ),
]


@app.command(
    "list",
    cls=Command,
    epilog=examples(
        "names only, for a script",
        "headrace topics list | tail -n +2 | cut -f1",
        "everything, as JSON",
        "headrace topics list --json",
    ),
)
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Show internal topics too.")] = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List topics with their partitions and replicas."""
    cluster = _connect(bootstrap)
    topics = [topic for topic in cluster.describe(cluster.topic_names()) if internal or not topic.is_internal]
    if json:
        output.print_json(
            [
                {
                    "name": topic.name,
                    "id": str(topic.topic_id),
                    "partitions": len(topic.partitions),
                    "replication_factor": _replication_factor(topic),
                    "internal": topic.is_internal,
                }
                for topic in topics
            ]
        )
    elif not topics and output.stdout_is_terminal():
        output.tell(f"No topics at {bootstrap} yet. Create one: `headrace topics create NAME`")
    else:
        columns = [Column("Topic"), Column("Partitions", number=True), Column("Replicas", number=True)]
        rows: list[list[output.Cell]] = [[t.name, len(t.partitions), _replication_factor(t)] for t in topics]
        if internal:
            columns.append(Column("Internal"))
            rows = [[*row, "yes" if topic.is_internal else "no"] for row, topic in zip(rows, topics, strict=True)]
        output.print_table(columns, rows)


@app.command(
    cls=Command,
    epilog=examples(
        "six partitions, one day of retention",
        "headrace topics create orders --partitions 6 --config retention.ms=86400000",
        "compacted: keep the last record of each key",
        "headrace topics create profiles --config cleanup.policy=compact",
    ),
)
def create(
    topics: Topics,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            min=1,
            max=MAX_PARTITIONS,
            show_default="the broker decides",
            metavar="N",
            help="Number of partitions.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            min=1,
            max=MAX_REPLICAS,
            show_default="the broker decides",
            metavar="N",
            help="Number of replicas of each partition.",
        ),
    ] = None,
    config: Config = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic already exists.")
    ] = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create topics."""
    settings = dict(key_and_value(text, "--config") for text in config or ())
    cluster = _connect(bootstrap)
    created = []
    for name in topics:
        is_new = _create(cluster, name, partitions, replication_factor, settings, if_not_exists)
        topic = cluster.describe([name])[0]
        created.append(
            {
                "name": name,
                "id": str(topic.topic_id),
                "partitions": len(topic.partitions),
                "replication_factor": _replication_factor(topic),
                "created": is_new,
            }
        )
        if not json:
            shape = f"{output.count(len(topic.partitions), 'partition')}, {_times(_replication_factor(topic))}"
            output.write_lines(f"Created topic {name}: {shape}" if is_new else f"Topic {name} already exists: {shape}")
    if json:
        output.print_json(created)


@app.command(
    cls=Command,
    epilog=examples(
        "partitions, offsets, size and settings",
        "headrace topics describe orders",
        "records in all partitions",
        "headrace topics describe orders --json | jq '.[0].records'",
    ),
)
def describe(topics: Topics, json: Json = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Show a topic's partitions, offsets, size on disk and settings that are not the default.

    Record counts are differences of offsets: topics with compaction or transactions may contain fewer records.
    """
    from headrace.cli.topic_report import print_reports, report

    cluster = _connect(bootstrap)
    reports = report(cluster, list(dict.fromkeys(topics)))
    if json:
        output.print_json([topic.as_json() for topic in reports])
    else:
        print_reports(reports)


@app.command(
    cls=Command,
    epilog=examples(
        "with confirmation",
        "headrace topics delete orders",
        "in a script",
        "headrace topics delete orders --yes --if-exists",
    ),
)
def delete(
    topics: Topics,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed if the topic does not exist.")] = False,
    quiet: Quiet = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete topics and all their records."""
    topics = list(dict.fromkeys(topics))
    if not yes and not output.is_terminal(sys.stdin):
        raise usage_error("deleting needs confirmation, and standard input is not a terminal", "Confirm with --yes.")
    cluster = _connect(bootstrap)
    known = cluster.topic_names()
    absent = [name for name in topics if name not in known]
    if absent and not if_exists:
        raise missing_topic(absent[0], bootstrap, known)
    topics = [name for name in topics if name in known]
    if not topics:
        return
    if not yes:
        names = ", ".join(topics)
        typer.confirm(f"Delete {names} at {bootstrap}, with all records?", abort=True, err=True)
    futures = cluster.admin.delete_topics(topics, operation_timeout=10.0, request_timeout=10.0)
    for name in topics:
        cluster.answer(futures[name], f"deleting topic '{name}'")
        if not quiet:
            output.tell(f"Deleted topic {name}")


@app.command(
    cls=Command,
    epilog=examples(
        "more partitions",
        "headrace topics alter orders --partitions 12",
        "one week of retention",
        "headrace topics alter orders --config retention.ms=604800000",
        "restore the default",
        "headrace topics alter orders --delete-config retention.ms",
    ),
)
def alter(
    topic: Topic,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            min=1,
            max=MAX_PARTITIONS,
            show_default=False,
            metavar="N",
            help="New number of partitions, greater than the current one.",
        ),
    ] = None,
    config: Config = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(
            "--delete-config",
            metavar="KEY",
            show_default=False,
            help="Restore the default of this setting; repeatable.",
        ),
    ] = None,
    quiet: Quiet = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Add partitions to a topic or change its settings."""
    if partitions is None and not config and not delete_config:
        raise usage_error(f"nothing to change in topic '{topic}'", "Give --partitions, --config or --delete-config.")
    settings: dict[str, str | None] = dict(key_and_value(text, "--config") for text in config or ())
    settings |= dict.fromkeys(delete_config or ())
    cluster = _connect(bootstrap)
    before = len(cluster.describe([topic])[0].partitions)
    if partitions is not None and partitions <= before:
        # Checked before the settings are changed, so that the command does not do half of its work.
        raise CommandError(
            f"topic '{topic}' already has {output.count(before, 'partition')}; the number can only grow",
            "To have fewer, create another topic and copy the records.",
        )
    if settings:
        own = _own_settings(cluster, topic, delete_config or ())
        _alter_configs(cluster, topic, settings)
        if not quiet:
            for name, value in settings.items():
                output.tell(f"{topic}: {name} {_changed(value, was_set=name in own)}")
    if partitions is not None:
        _add_partitions(cluster, topic, partitions)
        if not quiet:
            output.tell(f"{topic}: {output.count(partitions, 'partition')}, up from {before:,}")


def _connect(bootstrap: str) -> "Cluster":
    # Imported late: loading the client library would delay the help page.
    from headrace.cli.cluster import Cluster

    return Cluster.connect(bootstrap)


def _create(
    cluster: "Cluster",
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    settings: dict[str, str],
    if_not_exists: bool,
) -> bool:
    from confluent_kafka.admin import NewTopic

    try:
        cluster.create(NewTopic(name, partitions or -1, replication_factor or -1, config=settings))
    except CommandError as error:
        if "TOPIC_ALREADY_EXISTS" not in error.what or "is being deleted" in error.what:
            raise
        if not if_not_exists:
            raise CommandError(
                f"topic '{name}' already exists",
                "`headrace topics alter` changes it; --if-not-exists leaves it unchanged.",
            ) from None
        return False
    return True


def _own_settings(cluster: "Cluster", topic: str, deleted: Sequence[str]) -> set[str]:
    """Return the names of the settings that are set on the topic, or none if no setting is to be deleted.

    Raises CommandError if one of `deleted` does not exist: brokers, including Kafka's, ignore such a deletion.
    """
    from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType

    if not deleted:
        return set()
    resource = ConfigResource(ResourceType.TOPIC, topic)
    future = cluster.admin.describe_configs([resource], request_timeout=10.0)[resource]
    entries = cluster.answer(future, f"listing the settings of topic '{topic}'")
    own = {name for name, entry in entries.items() if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value}
    unknown = [name for name in deleted if name not in entries]
    if unknown:
        near = difflib.get_close_matches(unknown[0], sorted(own)) or difflib.get_close_matches(unknown[0], entries)
        set_now = f"Set on the topic: {', '.join(sorted(own))}." if own else "No settings are set on the topic."
        raise CommandError(
            f"'{unknown[0]}' is not a topic setting", f"Did you mean '{near[0]}'? {set_now}" if near else set_now
        )
    return own


def _changed(value: str | None, *, was_set: bool) -> str:
    if value is not None:
        return f"is now {value}"
    return "has its default again" if was_set else "was not set on the topic"


def _alter_configs(cluster: "Cluster", topic: str, settings: dict[str, str | None]) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries = [
        ConfigEntry(
            name, value, incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        )
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    futures = cluster.admin.incremental_alter_configs([resource], request_timeout=10.0)
    cluster.answer(futures[resource], f"changing topic '{topic}'")


def _add_partitions(cluster: "Cluster", topic: str, partitions: int) -> None:
    from confluent_kafka.admin import NewPartitions

    futures = cluster.admin.create_partitions([NewPartitions(topic, partitions)], request_timeout=10.0)
    cluster.answer(futures[topic], f"adding partitions to topic '{topic}'")


def _replication_factor(topic: Any) -> int:
    return max((len(partition.replicas) for partition in topic.partitions), default=0)


def _times(replication_factor: int) -> str:
    return "1 replica each" if replication_factor == 1 else f"{replication_factor} replicas each"
