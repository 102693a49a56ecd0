"""`headrace verify`: find damage in log directories, without a broker."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import output
from headrace.cli.failures import CommandError
from headrace.cli.help_pages import examples
from headrace.cli.options import Json
from headrace.cli.output import Column

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.storage.dirs.verification import Finding

EPILOG = examples(
    "all logs in a log directory",
    "headrace verify /var/lib/headrace",
    "one partition, as JSON",
    "headrace verify /var/lib/headrace/orders-0 --json",
)
_COLUMNS = (Column("File"), Column("Byte", number=True), Column("Offset", number=True), Column("What"), Column("Do"))

Directories = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR",
        show_default=False,
        exists=True,
        file_okay=False,
        help="Log directories, or directories of partitions.",
    ),
]


@dataclass
class _Read:
    partitions: int = 0
    segments: int = 0
    bytes: int = 0
    findings: "list[Finding]" = field(default_factory=list)


def verify(directory: Directories, json: Json = False) -> None:
    """Read logs from beginning to end and report damage. Changes nothing.

    The exit code is 1 if something is damaged. While a broker is writing, the end of a log may appear incomplete.
    """
    from headrace.storage.dirs.verification import (
        NotALogDirectoryError,
        find_strays,
        partition_directories,
        verify_checkpoints,
        verify_partition,
        verify_topic_ids,
    )

    read = _Read()
    topics = _known_topics(directory, read.findings)
    for item in directory:
        try:
            partitions = partition_directories(item)
            if partitions != [item]:
                read.findings += verify_checkpoints(item)
                read.findings += find_strays(item)
            read.findings += verify_topic_ids(partitions, topics)
            for partition in partitions:
                verified = verify_partition(partition)
                read.partitions += 1
                read.segments += verified.segments
                read.bytes += verified.bytes
                read.findings += verified.findings
        except NotALogDirectoryError as error:
            raise CommandError(str(error)) from None
        except OSError as error:
            raise CommandError(f"cannot read {item}: {error.strerror or error}") from None
    if json:
        output.print_json(
            {
                "partitions": read.partitions,
                "segments": read.segments,
                "bytes": read.bytes,
                "findings": [found._asdict() | {"file": str(found.file)} for found in read.findings],
            }
        )
    elif read.findings:
        output.print_table(
            _COLUMNS,
            [
                (str(finding.file), finding.position, finding.offset, finding.what, finding.remedy)
                for finding in read.findings
            ],
        )
    output.tell(
        f"Read {output.count(read.partitions, 'partition')}, {output.count(read.segments, 'segment')}, "
        f"{read.bytes / 1e6:.1f} MB: "
        + (f"{output.count(len(read.findings), 'problem')}." if read.findings else "no damage found.")
    )
    if read.findings:
        raise typer.Exit(1)


def _known_topics(directories: list[Path], findings: "list[Finding]") -> "dict[str, UUID]":
    """Return the ids of the cluster's topics by name, from the metadata in one of the directories, if present."""
    from headrace.cluster.store import StoreError
    from headrace.cluster.stores.metadata_file import topic_ids
    from headrace.storage.dirs.verification import Finding

    for item in (*directories, *(directory.parent for directory in directories)):
        path = item / "metadata.db"
        try:
            if path.exists():
                return topic_ids(path)
        except (StoreError, OSError) as error:
            findings.append(Finding(path, None, None, str(error), "restore the file from a backup"))
    return {}
