"""`headrace transactions`: list and describe transactions, and abort hanging ones."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import output
from headrace.cli.failures import CommandError, usage_error
from headrace.cli.help_pages import Command, Group, examples
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, Quiet
from headrace.cli.positions import parse_duration

if TYPE_CHECKING:
    from headrace.cli.cluster import Cluster
    from headrace.cli.offset_plan import Selection
    from headrace.cli.transaction_calls import Place, Producer

app = typer.Typer(cls=Group, no_args_is_help=True, help="List and describe transactions, and abort hanging ones.")

_MAX_INT64 = 2**63 - 1

Places = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC[:PARTITIONS]", show_default=False, help="orders, orders:0,2 or orders:0-3."),
]
Broker = Annotated[
    int | None,
    typer.Option(
        "--broker",
        metavar="ID",
        min=0,
        show_default="each partition's leader",
        help="Query the replicas on this broker.",
    ),
]


@app.command(
    "list",
    cls=Command,
    epilog=examples(
        "open for more than a minute, with age and timeout",
        "headrace transactions list --longer-than 1m --long",
        "open transactions of one application",
        "headrace transactions list --pattern 'billing-.*' --state Ongoing",
    ),
)
def list_transactions(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", "-s", metavar="STATE", show_default=False, help="Only ids in this state; repeatable."),
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        typer.Option(
            "--producer-id",
            min=0,
            metavar="ID",
            show_default=False,
            help="Only ids with this producer id; repeatable.",
        ),
    ] = None,
    longer_than: Annotated[
        str | None,
        typer.Option(
            "--longer-than",
            metavar="DURATION",
            show_default=False,
            help="Only if open for longer than this: 90s, 15m, 2h.",
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--pattern", metavar="REGEX", show_default=False, help="Only ids that match this expression as a whole."
        ),
    ] = None,
    long: Annotated[bool, typer.Option("--long", "-l", help="Also show age, timeout and partition count.")] = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List transactional ids with their coordinator, producer id and state."""
    longer_than_ms = None if longer_than is None else _duration_ms(longer_than)
    for item in producer_id or ():
        _check_int64("--producer-id", item)
    cluster = _connect(bootstrap)
    from headrace.cli import transaction_calls, transaction_tables

    listings = transaction_calls.list_transactions(
        cluster,
        states=[_known_state(one) for one in state or ()],
        producer_ids=producer_id or (),
        longer_than_ms=longer_than_ms,
        pattern=pattern,
    )
    described = None
    if long:
        described = transaction_calls.describe_transactions(cluster, [listing.transactional_id for listing in listings])
        # Leave out ids that have expired since they were listed.
        listings = [listing for listing in listings if listing.transactional_id in described]
    if json:
        output.print_json(
            [transaction_tables.as_json(described[listing.transactional_id]) for listing in listings]
            if described is not None
            else [asdict(listing) for listing in listings]
        )
    elif not listings and output.stdout_is_terminal():
        filtered = " with these properties" if state or producer_id or longer_than or pattern else ""
        output.tell(f"No transactional ids{filtered} at {bootstrap}.")
    else:
        transaction_tables.print_listings(listings, described)


@app.command(
    cls=Command,
    epilog=examples(
        "state, timeout, age and partitions",
        "headrace transactions describe billing-1",
        "the partitions without a marker",
        "headrace transactions describe billing-1 --json | jq '.[0].partitions'",
    ),
)
def describe(
    ids: Annotated[
        list[str], typer.Argument(metavar="TRANSACTIONAL_ID", show_default=False, help="Transactional ids.")
    ],
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show a transactional id's producer, state, timeout and age, and the partitions of its open transaction."""
    cluster = _connect(bootstrap)
    from headrace.cli import transaction_calls, transaction_tables

    ids = list(dict.fromkeys(ids))
    found = transaction_calls.describe_transactions(cluster, ids)
    for item in ids:
        if item not in found:
            raise transaction_calls.missing_id(cluster, item)
    transactions = [found[one] for one in ids]
    starts = transaction_calls.start_offsets(cluster, transactions)
    if json:
        output.print_json([transaction_tables.as_json(transaction, starts) for transaction in transactions])
    else:
        transaction_tables.print_transactions(transactions, starts)


@app.command(
    "describe-producers",
    cls=Command,
    epilog=examples(
        "the producers of a partition, and their open transactions",
        "headrace transactions describe-producers orders:0",
    ),
)
def describe_producers(
    places: Places,
    broker: Broker = None,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the producers of partitions: epochs, last sequence number and timestamp, and open transactions."""
    selection = _selection(places, "TOPIC[:PARTITIONS]")
    cluster = _connect(bootstrap)
    from headrace.cli import hanging, transaction_calls, transaction_tables

    asked, _ = hanging.partitions(cluster, selection, broker)
    producers = transaction_calls.describe_producers(cluster, asked, broker)
    if json:
        output.print_json(
            [
                {"topic": place[0], "partition": place[1], **asdict(item)}
                for place, found in sorted(producers.items())
                for item in found
            ]
        )
    elif not any(producers.values()) and output.stdout_is_terminal():
        output.tell(
            "No idempotent or transactional producer has written to these partitions within producer.id.expiration.ms."
        )
    else:
        transaction_tables.print_producers(producers)


@app.command(
    "find-hanging",
    cls=Command,
    epilog=examples(
        "in the whole cluster",
        "headrace transactions find-hanging",
        "in one topic, on one broker's replicas, without a record for an hour",
        "headrace transactions find-hanging orders --broker 1 --longer-than 1h",
    ),
)
def find_hanging(
    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC[:PARTITIONS]", show_default="all topics", help="orders, orders:0,2 or orders:0-3."
        ),
    ] = None,
    broker: Broker = None,
    longer_than: Annotated[
        str,
        typer.Option(
            "--longer-than",
            metavar="DURATION",
            help="Skip transactions with a record younger than this; give at least the longest transaction timeout.",
        ),
    ] = "15m",
    json: Json = False,
    quiet: Quiet = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Find transactions that are open in a partition and that no coordinator will end.

    Consumers with read_committed cannot read past such a transaction.
    """
    older_than_ms = _duration_ms(longer_than)
    selection = _selection(places or (), "TOPIC[:PARTITIONS]")
    cluster = _connect(bootstrap)
    from headrace.cli import hanging, transaction_tables

    found = hanging.search(cluster, selection, broker, older_than_ms)
    if json:
        output.print_json([asdict(item) for item in found.hanging])
    elif found.hanging or not output.stdout_is_terminal():
        transaction_tables.print_hanging(found.hanging)
    if quiet:
        return
    for topic, partition in found.leaderless:
        output.warn(f"{topic}:{partition} has no leader and was not searched")
    if found.hanging:
        first = found.hanging[0]
        where = f"{first.topic}:{first.partition}"
        output.warn(f"`headrace transactions abort {where} --start-offset {first.start_offset}` aborts the first one.")
    else:
        output.tell(f"No hanging transactions in {output.count(found.searched, 'partition')}.")


@app.command(
    cls=Command,
    epilog=examples(
        "with confirmation",
        "headrace transactions abort orders:3 --start-offset 1234",
        "in a script",
        "headrace transactions abort orders:3 --start-offset 1234 --yes",
        "by producer instead of offset",
        "headrace transactions abort orders:3 --producer-id 17 --producer-epoch 0 --coordinator-epoch 2",
    ),
)
def abort(
    place: Annotated[str, typer.Argument(metavar="TOPIC:PARTITION", show_default=False, help="For example orders:3.")],
    start_offset: Annotated[
        int | None,
        typer.Option(
            "--start-offset",
            min=0,
            metavar="OFFSET",
            show_default=False,
            help="First offset of the transaction, as find-hanging shows it.",
        ),
    ] = None,
    producer_id: Annotated[
        int | None,
        typer.Option(
            "--producer-id",
            min=0,
            metavar="ID",
            show_default=False,
            help="Producer of the transaction; give it with --producer-epoch, instead of --start-offset.",
        ),
    ] = None,
    producer_epoch: Annotated[
        int | None,
        typer.Option(
            "--producer-epoch",
            min=0,
            max=2**15 - 1,
            metavar="N",
            show_default=False,
            help="Epoch of the producer in this partition.",
        ),
    ] = None,
    coordinator_epoch: Annotated[
        int,
        typer.Option(
            "--coordinator-epoch",
            min=0,
            max=2**31 - 1,
            metavar="N",
            help="With --producer-id: epoch of the new marker, at least the one of the producer's last marker.",
        ),
    ] = 0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    quiet: Quiet = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Abort a hanging transaction in one partition, so that read_committed consumers can continue."""
    if (start_offset is None) == (producer_id is None):
        raise usage_error("give either --start-offset or --producer-id")
    if (producer_id is None) != (producer_epoch is None):
        raise usage_error("give both --producer-id and --producer-epoch")
    _check_int64("--start-offset", start_offset or 0)
    _check_int64("--producer-id", producer_id or 0)
    topic, partition = _one_place(place)
    if not yes and not output.is_terminal(sys.stdin):
        raise usage_error("aborting needs confirmation, and standard input is not a terminal", "Confirm with --yes.")
    cluster = _connect(bootstrap)
    from headrace.cli import transaction_calls

    cluster.partitions(topic, partition)
    if start_offset is not None:
        found = _beginning_at(cluster, (topic, partition), start_offset)
        producer_id, producer_epoch = found.producer_id, found.epoch
        # As in Kafka's tool, 0 if the producer has no marker yet: no coordinator epoch is lower.
        coordinator_epoch = found.coordinator_epoch or 0
    assert producer_id is not None
    assert producer_epoch is not None
    if start_offset is None:
        _check_is_open(cluster, (topic, partition), producer_id, producer_epoch)
    known = None
    try:
        known = transaction_calls.holder(cluster, (topic, partition), producer_id)
    except transaction_calls.TooOldError as error:
        # Older brokers can abort it nevertheless.
        if not quiet:
            output.warn(f"Cannot check whether this transaction is hanging: {error.what}. {error.hint}")
    if known is not None and not quiet:
        output.warn(
            f"This transaction is not hanging: its coordinator will end it ('{known.transactional_id}', "
            f"{known.state}). "
            "Aborting it here loses its records in this partition, even if the producer commits."
        )
    who = f"producer {producer_id}, epoch {producer_epoch}"
    if not yes:
        typer.confirm(f"Abort the transaction of {who}, in {topic}:{partition} at {bootstrap}?", abort=True, err=True)
    transaction_calls.abort(cluster, (topic, partition), producer_id, producer_epoch, coordinator_epoch)
    if not quiet:
        output.tell(f"Aborted the transaction of {who}, in {topic}:{partition}")


def _connect(bootstrap: str) -> "Cluster":
    # Imported late: loading the client library would delay the help page.
    from headrace.cli.cluster import Cluster

    return Cluster.connect(bootstrap)


def _selection(texts: Sequence[str], argument: str) -> "Selection":
    from headrace.cli.offset_plan import parse_selection

    return parse_selection(texts, argument)


def _one_place(text: str) -> "Place":
    topic, partitions = next(iter(_selection([text], "TOPIC:PARTITION").topics.items()))
    partition = None if partitions is None else partitions.only
    if partition is None:
        raise usage_error(f"'{text}' does not name exactly one partition", "For example orders:3.")
    return topic, partition


def _duration_ms(text: str) -> int:
    found = parse_duration(text.strip().lower())
    if found is None or found > _MAX_INT64:
        raise usage_error(f"--longer-than '{text}' is not a duration", "For example 90s, 15m or 2h.")
    return found


def _check_int64(option: str, number: int) -> None:
    # Checked here, because bounds of this size in the option's declaration would fill the help page.
    if number > _MAX_INT64:
        raise usage_error(f"{option} {number}: must be at most {_MAX_INT64}")


def _known_state(text: str) -> str:
    from headrace.cli.transaction_calls import STATES

    wanted = text.strip().lower().replace("_", "").replace("-", "")
    for name in STATES:
        if name.lower() == wanted:
            return name
    raise usage_error(f"'{text}' is not a transaction state", f"The states are {', '.join(STATES)}.")


def _beginning_at(cluster: "Cluster", place: "Place", offset: int) -> "Producer":
    from headrace.cli import transaction_calls

    topic, partition = place
    producers = transaction_calls.describe_producers(cluster, [place])[place]
    for producer in producers:
        if producer.start_offset == offset:
            return producer
    opened = sorted(item.start_offset for item in producers if item.start_offset is not None)
    if opened:
        hint = f"Open transactions begin at {', '.join(map(str, opened[:5]))}{' and others' * (len(opened) > 5)}."
    else:
        hint = "No transaction is open in this partition."
    raise CommandError(f"no open transaction begins at offset {offset} of {topic}:{partition}", hint)


def _check_is_open(cluster: "Cluster", place: "Place", producer_id: int, epoch: int) -> None:
    """Raise CommandError if the producer has no open transaction in the partition: the leader would accept any marker.

    Older brokers cannot tell. The leader itself refuses an epoch that is out of date.
    """
    from headrace.cli import transaction_calls

    try:
        producers = transaction_calls.describe_producers(cluster, [place])[place]
    except transaction_calls.TooOldError:
        return
    found = next((producer for producer in producers if producer.producer_id == producer_id), None)
    if found is None or (found.start_offset is None and found.epoch <= epoch):
        where = f"{place[0]}:{place[1]}"
        raise CommandError(
            f"producer {producer_id} has no open transaction in {where}",
            f"`headrace transactions describe-producers {where}` shows producers and their open transactions.",
        )
