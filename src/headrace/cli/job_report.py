"""Print jobs and deployments: tables on a terminal, tab-separated lines in a pipe, objects for JSON."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.cli import output
from headrace.cli.group_layout import Name, Prose, print_table
from headrace.cli.output import Cell, Column
from headrace.cli.pipeline_options import Selection
from headrace.pipeline.spec import params, profiles
from headrace.pipeline.spec.jobs import Additive, Append, Changelog, Job, Output, Publish, Snapshot, Stateful, Table

_ACROSS = ", "


def listed(selection: Selection) -> list[dict[str, Any]]:
    """Return the jobs as objects for JSON."""
    return [
        {
            "name": job.name,
            "version": job.version,
            "source": _source(job, selection),
            "tables": list(job.tables),
            "topics": _topics(job),
            "description": _description(job),
            "from": selection.jobs.origin(job.name),
        }
        for job in selection.jobs.values()
    ]


def print_list(jobs: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each job that `listed` returned."""
    print_table(
        [Column("Job"), Prose("Reads"), Prose("Tables"), Prose("Topics"), Name("From")],
        [
            [
                job["name"],
                _reads(job["source"]),
                _ACROSS.join(job["tables"]),
                _ACROSS.join(job["topics"]) or None,
                job["from"],
            ]
            for job in jobs
        ],
    )


def described(job: Job, selection: Selection) -> dict[str, Any]:
    """Return everything about a job in its deployment as an object for JSON; for secrets, only their sources."""
    deployment = selection.deployment
    settings = deployment.settings(job.name)
    values = deployment.params(job)
    master = deployment.spark.master or profiles.DEFAULT_MASTER
    return {
        "name": job.name,
        "version": job.version,
        "description": _description(job),
        "from": selection.jobs.origin(job.name),
        "source": _source(job, selection),
        "trigger": settings.trigger or job.trigger,
        "max_rows": settings.rows_of(job),
        "late": job.late,
        "group": f"{deployment.prefix}headrace-{job.name}",
        "outputs": [_output(item) for item in job.outputs],
        "params": [
            {
                "name": param.name,
                "value": getattr(values, param.name),
                "default": param.default,
                "changed": param.name in settings.params,
                "allowed": param.allowed,
            }
            for param in params.known(job)
        ],
        "expects": [
            {"condition": expect.condition, "reason": expect.reason, "otherwise": expect.otherwise}
            for expect in job.expects
        ],
        "config": str(selection.config.resolve()) if selection.config else None,
        "cluster": _cluster(selection),
        "lake": deployment.lake,
        "checkpoints": deployment.checkpoints,
        "spark": {
            "master": master,
            "profile": profiles.profile_of(master),
            "settings": _spark(selection, master),
        },
    }


def print_description(job: Mapping[str, Any]) -> None:
    """Print what `described` returned; in a pipe, as tab-separated blocks, separated by empty lines."""
    output.print_pairs(_summary(job))
    tables = [item for item in job["outputs"] if "table" in item]
    columns = [Column("Table"), Column("Kind"), Prose("Keys"), Prose("Values")]
    rows: list[list[Cell]] = [
        [table["table"], table["kind"], _joined(table["keys"]), _joined(_values(table))] for table in tables
    ]
    while output.stdout_is_terminal() and not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    _print_block(columns, rows)
    _print_block(
        [Column("Topic"), Column("Changes of")],
        [[item["topic"], item.get("of")] for item in job["outputs"] if "topic" in item],
    )
    _print_block(
        [Column("Parameter"), Column("Value"), Column("Default"), Prose("Allowed")],
        [
            [item["name"], *(_literal(item[name]) for name in ("value", "default")), item["allowed"]]
            for item in job["params"]
        ],
    )
    _print_block(
        [Prose("Expectation"), Column("Otherwise"), Prose("Reason")],
        [[item["condition"], item["otherwise"], item["reason"]] for item in job["expects"]],
    )
    _print_block(
        [Column("Cluster setting"), Prose("Value")],
        [[name, value] for name, value in job["cluster"].items() if name != "bootstrap.servers"],
    )
    _print_spark(job["spark"])


def _print_block(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    if rows:
        output.write_lines("")
        print_table(columns, rows)


def _print_spark(spark: Mapping[str, Any]) -> None:
    if not output.stdout_is_terminal():
        rows: list[list[Cell]] = [[item["name"], item["value"], item["set_by"]] for item in spark["settings"]]
        _print_block([Column("Spark setting"), Column("Value"), Column("Set by")], rows)
        return
    # Names and values of up to 70 characters do not fit in a table.
    output.write_lines("", f"Spark settings of the {spark['profile']} profile")
    for item in spark["settings"]:
        mark = "" if item["set_by"] == "profile" else f"   ({item['set_by']})"
        output.write_lines(f"  {item['name']}={item['value']}{mark}")


def _summary(job: Mapping[str, Any]) -> list[tuple[str, Cell]]:
    spark = job["spark"]
    return [
        ("Job", job["name"]),
        *([("Description", job["description"])] if job["description"] else []),
        ("Version", job["version"]),
        ("From", job["from"]),
        ("Reads", _reads(job["source"])),
        ("Trigger", job["trigger"]),
        ("Rows per batch", job["max_rows"]),
        ("Late rows", job["late"]),
        ("Group", job["group"]),
        ("Config", job["config"]),
        ("Cluster", job["cluster"]["bootstrap.servers"]),
        ("Lake", job["lake"]),
        ("Checkpoints", job["checkpoints"]),
        ("Spark", f"{spark['master']}, {spark['profile']} profile"),
    ]


def _description(job: Job) -> str | None:
    text = inspect.getdoc(job.function)
    return text.split("\n", 1)[0] if text else None


def _source(job: Job, selection: Selection) -> dict[str, Any]:
    if isinstance(job.source, Table):
        return {"table": job.source.name}
    topic = selection.deployment.settings(job.name).topic
    return {"topics": topic.split(",") if topic else []}


def _reads(source: Mapping[str, Any]) -> str:
    if "table" in source:
        return f"table {source['table']}"
    topics = source["topics"]
    return f"topic{'s' if len(topics) > 1 else ''} {_ACROSS.join(topics)}" if topics else "topic not set"


def _topics(job: Job) -> list[str]:
    return [output.topic for output in job.outputs if isinstance(output, Changelog | Publish)]


def _output(each: Output) -> dict[str, Any]:
    match each:
        case Changelog(topic=topic, of=of):
            return {"kind": "changelog", "topic": topic, "of": of}
        case Publish(topic=topic, keys=keys):
            return {"kind": "publish", "topic": topic, "keys": list(keys)}
        case Additive():
            values = {name: list(getattr(each, name)) for name in ("sums", "minima", "maxima", "sketches")}
            return {"kind": "additive", "table": each.table, "keys": list(each.keys), **values, "time": each.time}
        case Stateful(table=table, keys=keys, mode=mode):
            return {"kind": "stateful", "table": table, "keys": list(keys), "mode": mode}
        case Snapshot(table=table, keys=keys):
            return {"kind": "snapshot", "table": table, "keys": list(keys)}
        case Append(table=table, partition_by=partition_by):
            return {"kind": "append", "table": table, "keys": [], "partition_by": list(partition_by)}


def _values(table: Mapping[str, Any]) -> list[str]:
    """Return the aggregates of an additive table, such as sum(views); other kinds do not declare their columns."""
    functions = {"sums": "sum", "minima": "min", "maxima": "max", "sketches": "sketch"}
    return [f"{function}({name})" for kind, function in functions.items() for name in table.get(kind, ())]


def _joined(names: Sequence[str]) -> str | None:
    return _ACROSS.join(names) or None


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cluster(selection: Selection) -> dict[str, str]:
    cluster = selection.deployment.cluster
    tables = {"": cluster.settings, "java.": cluster.java, "librdkafka.": cluster.librdkafka}
    return {prefix + name: str(value) for prefix, table in tables.items() for name, value in table.items()}


def _spark(selection: Selection, master: str) -> list[dict[str, str]]:
    profile = profiles.profile_of(master)
    own = {name: str(value) for name, value in selection.deployment.spark.settings.items()}
    reasons = {item.name: item.why for item in profiles.TABLE}
    return [
        {
            "name": name,
            "value": value,
            "set_by": "deployment" if name in own else "profile",
            **({"why": reasons[name]} if name in reasons else {}),
        }
        for name, value in {**profiles.settings(profile), **own}.items()
    ]
