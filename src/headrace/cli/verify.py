"""`headrace verify`: reads the logs in directories and lists what is damaged, without a broker."""

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
    from headrace.storage.verification import Finding

EPILOG = examples(
    "all logs in a log directory",
    "headrace verify /var/lib/headrace",
    "one partition, for a program",
    "headrace verify /var/lib/headrace/orders-0 --json",
)
_COLUMNS = (Column("File"), Column("Byte", number=True), Column("Offset", number=True), Column("What"), Column("Do"))

Directories = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR", show_default=False, exists=True, file_okay=False, help="Log directories, or partitions in them."
    ),
]


@dataclass
class _Read:
    partitions: int = 0
    segments: int = 0
    bytes: int = 0
    findings: "list[Finding]" = field(default_factory=list)


def verify(directory: Directories, json: Json = False) -> None:
    """Read logs from beginning to end and list what is damaged; nothing is changed.

    Exits with 1 where something is. A broker may run meanwhile: the end of a log may then look half written.
    """
    from headrace.storage.verification import partition_directories, verify_checkpoints, verify_partition

    read = _Read()
    for each in directory:
        try:
            partitions = partition_directories(each)
            if partitions != [each]:
                read.findings += verify_checkpoints(each)
            for partition in partitions:
                verified = verify_partition(partition)
                read.partitions += 1
                read.segments += verified.segments
                read.bytes += verified.bytes
                read.findings += verified.findings
        except OSError as error:
            raise CommandError(f"cannot read {each}: {error}") from None
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
            _COLUMNS, [(str(each.file), each.position, each.offset, each.what, each.remedy) for each in read.findings]
        )
    output.tell(
        f"Read {output.count(read.partitions, 'partition')}, {output.count(read.segments, 'segment')}, "
        f"{read.bytes / 1e6:.1f} MB: "
        + (f"{output.count(len(read.findings), 'damaged place')}." if read.findings else "nothing is damaged.")
    )
    if read.findings:
        raise typer.Exit(1)
