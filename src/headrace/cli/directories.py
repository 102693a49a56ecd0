"""`headrace takeover` and `headrace handover`: move a data directory from Kafka with ZooKeeper to Headrace, and back.

Both work on the files of a stopped broker; see docs/moving.md.
"""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import output
from headrace.cli.failures import CommandError
from headrace.cli.help_pages import examples

TAKEOVER_EPILOG = examples(
    "from a stopped Kafka 3.x with ZooKeeper",
    "headrace takeover --data /var/lib/kafka --zookeeper localhost:2181",
    "then",
    "headrace start --data /var/lib/kafka",
)
HANDOVER_EPILOG = examples(
    "to Kafka 3.9 with ZooKeeper, after stopping `headrace start`",
    "headrace handover --data /var/lib/kafka --zookeeper localhost:2181",
    "then, with zookeeper.connect in the file",
    "kafka-server-start.sh server.properties",
)

Data = Annotated[
    list[Path],
    typer.Option("--data", metavar="DIR", show_default=False, help="The log directory; repeatable."),
]
ZooKeeper = Annotated[
    str,
    typer.Option("--zookeeper", metavar="HOST:PORT", show_default=False, help="Value of Kafka's zookeeper.connect."),
]


def takeover(data: Data, zookeeper: ZooKeeper) -> None:
    """Take over a data directory from Kafka with ZooKeeper, including topic settings.

    Kafka must be stopped. A directory of Kafka with KRaft needs no takeover: use `headrace start`.
    """
    from headrace.adoption.handover import take_over
    from headrace.config import load
    from headrace.errors import KafkaError

    try:
        adoption = take_over(data, zookeeper, load())
    except KafkaError as error:
        raise CommandError(str(error)) from None
    for line in adoption.left_out:
        output.tell(f"Not taken over: {line}")
    output.write_lines(f"Took over {adoption.summary()}.")
    where = f"--data {data[0]}" if len(data) == 1 else f"--set log.dirs={','.join(map(str, data))}"
    output.tell(f"Next: headrace start {where}")


def handover(data: Data, zookeeper: ZooKeeper) -> None:
    """Hand a data directory over to Kafka 3.9 with ZooKeeper, including topic settings.

    Headrace must be stopped. ZooKeeper must be empty, or contain this cluster (from a takeover or an earlier handover).
    """
    from headrace.adoption.handover import hand_over
    from headrace.errors import KafkaError

    try:
        broker_id, cluster_id, topics = hand_over(data, zookeeper)
    except KafkaError as error:
        raise CommandError(str(error)) from None
    output.write_lines(f"Handed over {output.count(topics, 'topic')} of cluster {cluster_id}.")
    directories = ",".join(map(str, data))
    output.tell(
        f"Next: start Kafka with broker.id={broker_id}, log.dirs={directories} and zookeeper.connect={zookeeper}"
    )
