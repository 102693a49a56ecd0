"""A query killed at any named point of a batch ends with exact tables and topics after a restart."""

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

pytest.importorskip("pyspark")
from pyspark.errors import StreamingQueryException

from headrace.pipeline.engine.exactly_once.losses import AcceptedLosses
from headrace.pipeline.engine.exactly_once.publishing import FencedError, TransactionalPublisher
from headrace.pipeline.engine.exactly_once.topic_ids import Accepted
from headrace.pipeline.errors import PipelineError, TemporaryError
from headrace.pipeline.spec import client_settings
from headrace.pipeline.spec.deployment import JobSettings
from headrace.pipeline.spec.jobs import Additive, Changelog, Expect, Job, Output, Publish, Topic, job, job_of
from tests.pipeline.reading import Published, latest, read_committed
from tests.pipeline.topics import Topics
from tests.support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.pipeline.engine.query import Query
    from headrace.pipeline.engine.tables.lake import Lake

pytestmark = pytest.mark.slow

RECORDS: Final = 2_000
BATCHES: Final = 4
"""One for each kill point."""
KEYS: Final = 7
TRUTH: Final = Counter(f"key {number % KEYS}" for number in range(RECORDS))
KILL_POINTS: Final = ("before-ledger", "after-table", "mid-publish", "before-commit")
_numbers: Final = itertools.count()


class KilledError(Exception):
    """The driver died here."""


TABLE: Final = Additive(table="counts", keys=("word",), sums=("times",))


@job(
    name="counts",
    source=Topic(),
    outputs=(TABLE,),
    expects=(Expect(condition="value IS NOT NULL", reason="no value"),),
)
def counts(records: "DataFrame", _: object) -> "DataFrame":
    from pyspark.sql import functions as sf

    return records.groupBy(sf.col("value").cast("string").alias("word")).agg(sf.count("*").alias("times"))


@dataclass
class Place:
    """A lake and a cluster whose topic `words` has 2,000 records."""

    spark: "SparkSession"
    bootstrap: str
    directory: str
    name: str
    transactions: bool = True
    topic: str = "words"
    batches: int = BATCHES
    outputs: tuple[Output, ...] = ()
    version: int = 1

    @property
    def lake(self) -> "Lake":
        from headrace.pipeline.engine.tables.lake import Lake

        return Lake(self.spark, self.directory)

    @property
    def job(self) -> Job:
        """The job under a name of its own, and so with its own group, transactional id and topic."""
        found = job_of(counts)
        assert found is not None
        outputs = self.outputs or (TABLE, Changelog(topic=self.name, of=TABLE.table))
        return replace(found, name=self.name, version=self.version, outputs=outputs)

    def query(
        self,
        kill: Callable[[str], None] = lambda _: None,
        accepted: Sequence[str] = (),
        accepted_losses: Sequence[str] = (),
    ) -> "Query":
        """Return the query as a new driver would."""
        from headrace.pipeline.engine.query import Query, Surroundings

        around = Surroundings(
            spark=self.spark,
            lake=self.lake,
            cluster=client_settings.plain(self.bootstrap),
            checkpoints=f"{self.directory}/_checkpoints",
            transactions=self.transactions,
            accepted=Accepted(accepted),
            losses=AcceptedLosses(accepted_losses),
        )
        settings = JobSettings(topic=self.topic, max_rows=RECORDS // self.batches)
        return Query(self.job, None, settings, around, reached=kill)

    def table(self) -> Counter[str]:
        return Counter({row.word: row.times for row in self.lake.view(TABLE).collect()})

    def published(self) -> list[Published]:
        return read_committed(self.bootstrap, self.name)


def run(query: "Query") -> None:
    query.start(once=True).awaitTermination()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("cluster") / "broker") as process:
        Topics(process.bootstrap).create("words", partitions=2, config={})
        producer = Producer({"bootstrap.servers": process.bootstrap})
        for number in range(RECORDS):
            producer.produce("words", f"key {number % KEYS}".encode(), partition=number % 2)
        assert producer.flush(30) == 0
        yield process


@pytest.fixture
def place(spark: "SparkSession", cluster: BrokerProcess, tmp_path: Path) -> Place:
    return Place(spark, cluster.bootstrap, str(tmp_path / "lake"), f"counts-{next(_numbers)}")


def killed_at(point: str, *, passes: int) -> Callable[[str], None]:
    """Return a function that lets `passes` passes of a point through, and raises at the next one."""
    passed: Counter[str] = Counter()

    def reached(name: str) -> None:
        passed[name] += 1
        if name == point and passed[name] > passes:
            raise KilledError(point)

    return reached


@pytest.mark.parametrize("transactions", [True, False], ids=["with transactions", "with the ledger"])
def test_a_query_killed_at_every_point_of_a_batch_writes_each_result_once(place: Place, transactions: bool) -> None:
    place.transactions = transactions
    for attempt, point in enumerate(KILL_POINTS):
        # Every attempt but the first begins with the batch in which the one before it died.
        with pytest.raises(StreamingQueryException, match="KilledError"):
            run(place.query(killed_at(point, passes=0 if attempt == 0 else 1)))
    run(place.query())

    assert place.table() == TRUTH
    published = place.published()
    assert Counter((record.headers["batch"], record.key) for record in published) == Counter(
        (str(batch), key) for batch in range(BATCHES) for key in TRUTH
    )
    assert {key: row["times"] for key, row in latest(published).items()} == TRUTH


def test_a_marker_that_the_tables_history_has_lost_is_not_needed(place: Place) -> None:
    place.batches = 2
    with pytest.raises(StreamingQueryException, match="KilledError"):
        run(place.query(killed_at("before-commit", passes=0)))
    table, jvm = place.lake.path(TABLE.table), cast("Any", place.spark._jvm)
    # A checkpoint of the table replaces the log before it, without the information of its commits.
    jvm.org.apache.spark.sql.delta.DeltaLog.forTable(place.spark._jsparkSession, table).checkpoint()
    nothing = place.lake.read(TABLE.table).limit(0)
    place.lake.append(TABLE.table, nothing, writer="another", batch=0, metadata={})
    Path(table, "_delta_log", f"{0:020}.json").unlink()
    run(place.query())

    assert place.table() == TRUTH
    assert max(Counter(record.identity for record in place.published()).values()) == 1


def test_a_second_driver_ends_the_first_and_results_stay_exact(place: Place) -> None:
    place.batches = 2

    def overtake(point: str) -> None:
        if point == "before-commit":
            checkpoint = Path(place.directory, "_checkpoints", f"{place.name}-1", "metadata")
            second = TransactionalPublisher(client_settings.plain(place.bootstrap), place.name, 1)
            second.open(json.loads(checkpoint.read_text())["id"])

    first = place.query(overtake)
    with pytest.raises(StreamingQueryException, match="another driver has started"):
        run(first)
    assert isinstance(first.failure, FencedError)
    run(place.query())

    assert place.table() == TRUTH
    assert {key: row["times"] for key, row in latest(place.published()).items()} == TRUTH


def test_a_topic_created_again_stops_the_query_until_the_user_accepts_it(place: Place) -> None:
    place.topic = f"{place.name}.in"
    produce(place, "old", 30)
    run(place.query())
    admin = AdminClient({"bootstrap.servers": place.bootstrap})
    admin.delete_topics([place.topic])[place.topic].result(30)
    # More than before, so that the old offsets exist again.
    produce(place, "new", 50)
    with pytest.raises(PipelineError, match=f"was created again.*--accept-new-topic {place.topic}"):
        place.query().start(once=True)
    assert place.table() == {"old": 30}
    run(place.query(accepted=[place.topic]))

    assert place.table() == {"old": 30, "new": 50}
    assert {key: row["times"] for key, row in latest(place.published()).items()} == {"old": 30, "new": 50}


@pytest.mark.parametrize("interrupted", [False, True])
def test_records_deleted_before_they_were_read_stop_the_query_until_the_user_accepts_it(
    place: Place, interrupted: bool
) -> None:
    place.topic = f"{place.name}.in"
    produce(place, "read", 30)
    run(place.query())
    produce(place, "lost", 20)
    produce(place, "left", 10)
    if interrupted:
        with pytest.raises(StreamingQueryException, match="KilledError"):
            run(place.query(killed_at("before-ledger", passes=0)))
    admin = AdminClient({"bootstrap.servers": place.bootstrap})
    for deleted in admin.delete_records([TopicPartition(place.topic, 0, 50)]).values():
        deleted.result(30)
    with pytest.raises(PipelineError, match=rf"{place.topic}-0 offsets 30 to 49\. .*--accept-lost {place.topic}"):
        place.query().start(once=True)
    run(place.query(accepted_losses=[place.topic]))
    run(place.query())

    assert place.table() == {"read": 30, "left": 10}
    assert {key: row["times"] for key, row in latest(place.published()).items()} == {"read": 30, "left": 10}


def test_a_topic_that_does_not_exist_is_named(place: Place) -> None:
    place.topic = "absent"
    with pytest.raises(PipelineError, match="topic absent does not exist; create it with `headrace topics create"):
        place.query().start(once=True)
    # Not final: the topic may be created while the driver runs.
    with pytest.raises(TemporaryError, match="topic absent does not exist"):
        place.query().start(once=False)


def test_a_job_without_a_table_publishes_each_row_once(place: Place) -> None:
    place.batches = 2
    place.outputs = (Publish(topic=place.name, keys=("word",)),)
    with pytest.raises(StreamingQueryException, match="KilledError"):
        run(place.query(killed_at("before-commit", passes=0)))
    run(place.query())

    times: Counter[str] = Counter()
    for record in place.published():
        times[record.key] += record.value["times"]
    assert times == TRUTH


@pytest.mark.parametrize("has_table", [True, False])
def test_a_query_whose_checkpoint_is_gone_does_not_start(place: Place, has_table: bool) -> None:
    place.batches = 1
    if not has_table:
        place.outputs = (Publish(topic=place.name, keys=("word",)),)
    run(place.query())
    published = len(place.published())
    shutil.rmtree(f"{place.directory}/_checkpoints/{place.name}-1")
    with pytest.raises(PipelineError, match=rf"checkpoint .*{place.name}-1 is gone\. Restore it"):
        place.query().start(once=True)
    assert len(place.published()) == published

    place.version = 2
    if not has_table:
        run(place.query())
        assert len(place.published()) == 2 * published


def produce(place: Place, word: str, count: int) -> None:
    """Create the place's topic, and produce a word to it."""
    Topics(place.bootstrap).create(place.topic, partitions=1, config={})
    producer = Producer({"bootstrap.servers": place.bootstrap})
    for _ in range(count):
        producer.produce(place.topic, word)
    assert producer.flush(30) == 0


def test_records_that_do_not_meet_an_expectation_are_quarantined_with_the_reason(place: Place) -> None:
    producer = Producer({"bootstrap.servers": place.bootstrap})
    Topics(place.bootstrap).create("torn", partitions=1, config={})
    producer.produce("torn", b"word")
    producer.produce("torn", None, b"torn")
    assert producer.flush(30) == 0
    place.topic = "torn"
    run(place.query())

    rows = place.lake.read("quarantine").collect()
    assert [(row.job, row.reason, row.topic, row.offset, bytes(row.key)) for row in rows] == [
        (place.name, "no value", "torn", 1, b"torn")
    ]
    assert place.table() == {"word": 1}
