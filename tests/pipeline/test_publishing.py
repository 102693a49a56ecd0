"""Publishers: batches with their proof, fenced drivers, repeated batches."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

import pytest

from headrace.pipeline.engine.exactly_once.publishing import (
    Batch,
    FencedError,
    LedgerPublisher,
    Publisher,
    Record,
    TransactionalPublisher,
    last_published,
)
from headrace.pipeline.spec import client_settings
from headrace.pipeline.spec.client_settings import Cluster
from tests.pipeline.reading import read_committed
from tests.pipeline.topics import Topics
from tests.support.broker_process import BrokerProcess

_numbers: Final = count()


class KilledError(Exception):
    """The driver died here."""


@dataclass(frozen=True)
class Kill:
    """Raises at a kill point."""

    point: str

    def __call__(self, reached: str) -> None:
        if reached == self.point:
            raise KilledError(reached)


@dataclass
class Job:
    """A job with a source topic and an output topic of its own."""

    bootstrap: str
    name: str

    @property
    def cluster(self) -> Cluster:
        return client_settings.plain(self.bootstrap)

    @property
    def group(self) -> str:
        return f"headrace-{self.name}"

    def transactional(self, killed_at: str = "", query: str = "q") -> TransactionalPublisher:
        """Return an open publisher, as a new driver would."""
        publisher = TransactionalPublisher(self.cluster, self.name, 1, reached=Kill(killed_at))
        publisher.open(query)
        return publisher

    def plain(self, killed_at: str = "") -> LedgerPublisher:
        publisher = LedgerPublisher(self.cluster, self.name, reached=Kill(killed_at))
        publisher.open("q")
        return publisher

    def batch(self, number: int, before: dict[int, int] | None = None) -> Batch:
        positions = {f"{self.name}.in": {0: 10 * number + 10}}
        return Batch(number=number, query="q", positions=positions, output_ends={self.name: before or {0: 0, 1: 0}})

    def records(self, *keys: str, value: str = "1") -> list[Record]:
        return [Record(self.name, key.encode(), value.encode()) for key in keys]

    def keys(self) -> list[str]:
        return sorted(record.key for record in read_committed(self.bootstrap, self.name))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("cluster") / "broker") as process:
        yield process


@pytest.fixture
def job(cluster: BrokerProcess) -> Job:
    job = Job(cluster.bootstrap, f"job-{next(_numbers)}")
    for topic in (job.name, f"{job.name}.in"):
        Topics(cluster.bootstrap).create(topic, partitions=2, config={})
    return job


def publish(publisher: Publisher, batch: Batch, records: list[Record]) -> int:
    return publisher.publish(batch, records, len(records))


def test_a_batch_is_published_once_with_its_number_in_the_committed_offset(job: Job) -> None:
    assert publish(job.transactional(), job.batch(4), job.records("a", "b")) == 2
    assert last_published(job.cluster, job.group, "q") == 4
    assert publish(job.transactional(), job.batch(4), job.records("a", "b")) == 0
    assert job.keys() == ["a", "b"]


def test_the_proof_of_another_checkpoint_does_not_count(job: Job) -> None:
    publish(job.transactional(), job.batch(4), job.records("a"))
    assert not job.transactional(query="another").is_published(0)


@pytest.mark.parametrize("point", ["mid-publish", "before-commit"])
def test_readers_never_see_a_part_of_a_killed_batch(job: Job, point: str) -> None:
    with pytest.raises(KilledError):
        publish(job.transactional(point), job.batch(0), job.records("a", "b"))
    assert job.keys() == []
    publish(job.transactional(), job.batch(0), job.records("a", "b"))
    assert job.keys() == ["a", "b"]


def test_an_old_driver_is_fenced_once_a_new_one_has_started(job: Job) -> None:
    old = job.transactional()
    publish(old, job.batch(0), job.records("a"))
    job.transactional()
    with pytest.raises(FencedError, match="another driver has started"):
        publish(old, job.batch(1), job.records("old"))
    assert job.keys() == ["a"]


def test_an_old_driver_in_the_middle_of_a_batch_cannot_commit_it(job: Job) -> None:
    def overtake(point: str) -> None:
        if point == "before-commit":
            publish(job.transactional(), job.batch(0), job.records("new"))

    old = TransactionalPublisher(job.cluster, job.name, 1, reached=overtake)
    old.open("q")
    with pytest.raises(FencedError):
        publish(old, job.batch(0), job.records("old"))
    assert job.keys() == ["new"]


def test_closing_aborts_an_open_transaction(job: Job) -> None:
    publisher = job.transactional("before-commit")
    with pytest.raises(KilledError):
        publish(publisher, job.batch(0), job.records("a"))
    publisher.close()
    # Positions of an open transaction are not stable, and the call would wait for them.
    assert last_published(job.cluster, job.group, "q") == -1


def test_a_batch_larger_than_the_producers_queue_is_published_whole(job: Job) -> None:
    small = replace(job.cluster, librdkafka={"queue.buffering.max.messages": "100"})
    publisher = TransactionalPublisher(small, job.name, 1)
    publisher.open("q")
    keys = [f"{key:04}" for key in range(2_000)]
    assert publish(publisher, job.batch(0), job.records(*keys)) == len(keys)
    assert job.keys() == keys


@pytest.mark.parametrize("point", ["mid-publish", "before-commit"])
def test_without_transactions_a_repeated_batch_adds_the_missing_records(job: Job, point: str) -> None:
    with pytest.raises(KilledError):
        publish(job.plain(point), job.batch(0), job.records("a", "b", "c", "d"))
    publish(job.plain(), job.batch(0), job.records("a", "b", "c", "d"))
    assert job.keys() == ["a", "b", "c", "d"]


def test_without_transactions_equal_records_without_keys_are_counted(job: Job) -> None:
    twice = [Record(job.name, None, b"1")] * 2
    with pytest.raises(KilledError):
        publish(job.plain("mid-publish"), job.batch(0), twice)
    assert publish(job.plain(), job.batch(0), twice) == 1


def test_without_transactions_records_of_earlier_batches_do_not_count(job: Job) -> None:
    first = job.plain()
    publish(first, job.batch(0), job.records("a"))
    ends = Topics(job.bootstrap).end_offsets(job.name)
    restarted = job.plain()
    assert publish(restarted, job.batch(1, ends), job.records("a")) == 1
    assert Counter(job.keys()) == {"a": 2}


def test_the_ledger_does_not_hide_records_of_other_programs(job: Job) -> None:
    other = Job(job.bootstrap, job.name)
    publish(other.plain(), replace(job.batch(0), query="another"), job.records("a"))
    assert publish(job.plain(), job.batch(0), job.records("a")) == 1
