"""Checks of the source topics at a start, without Spark and brokers."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest

from headrace.pipeline.engine.exactly_once.checkpoint import Checkpoint
from headrace.pipeline.engine.exactly_once.ledger import Entry, Ledger, Offsets
from headrace.pipeline.engine.exactly_once.losses import AcceptedLosses
from headrace.pipeline.engine.exactly_once.source_topics import SourceTopics
from headrace.pipeline.engine.exactly_once.topic_ids import Accepted, TopicChangedError
from headrace.pipeline.errors import PipelineError, TemporaryError
from tests.unit.pipeline.memory_files import MemoryFiles


@dataclass
class Cluster:
    """Topics by name."""

    ids: Mapping[str, str] = field(default_factory=lambda: {"log": "one"})
    starts: Offsets = field(default_factory=lambda: {"log": {0: 0, 1: 0}})

    def awaited_ids(self, names: Iterable[str]) -> Mapping[str, str]:
        return {name: self.ids[name] for name in names if name in self.ids}

    def start_offsets(self, names: Iterable[str]) -> Offsets:
        return {name: self.starts[name] for name in names}


@dataclass
class Job:
    """A job that has read its topic up to offset 100 of two partitions."""

    cluster: Cluster = field(default_factory=Cluster)
    files: MemoryFiles = field(default_factory=lambda: MemoryFiles({}))

    def __post_init__(self) -> None:
        self.files["c/raw-1/offsets/0"] = "\n".join(["v1", "{}", json.dumps({"log": {"0": 100, "1": 100}})])
        self.files["c/raw-1/commits/0"] = "v1\n{}"
        Ledger(self.files, "c", "raw").record(Entry(job="raw", version=1, query="q", batch=0, topic_ids={"log": "one"}))

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.files, "c", "raw", 1)

    def topics(self, *names: str, new: Iterable[str] = (), losses: AcceptedLosses | None = None) -> SourceTopics:
        """Return the job's topics, as a new driver would."""
        return SourceTopics(
            "raw",
            1,
            names or ("log",),
            topics=self.cluster,
            ledger=Ledger(self.files, "c", "raw"),
            checkpoint=self.checkpoint,
            accepted=Accepted(list(new)),
            losses=losses or AcceptedLosses(()),
        )


def test_brokers_that_do_not_know_a_topic_yet_do_not_end_the_job() -> None:
    job = Job()
    topics = job.topics()
    topics.check(once=True)
    job.cluster.ids = {}
    with pytest.raises(TemporaryError, match="do not know the topic"):
        topics.check_unchanged()
    with pytest.raises(TemporaryError, match="do not know the topic"):
        job.topics().check(once=True)


def test_a_topic_that_was_never_read_is_waited_for_without_once() -> None:
    with pytest.raises(TemporaryError, match="topic other does not exist"):
        Job().topics("log", "other").check(once=False)
    with pytest.raises(PipelineError, match="topic other does not exist"):
        Job().topics("log", "other").check(once=True)


def test_a_topic_created_again_is_read_from_its_beginning_only_if_accepted() -> None:
    job = Job(Cluster({"log": "two"}))
    with pytest.raises(TopicChangedError, match="was created again"):
        job.topics().check(once=False)
    job.topics(new=["log"]).check(once=False)
    assert job.checkpoint.last_offsets() == {"log": {"0": 0, "1": 0}}


def test_unread_records_that_were_deleted_are_named_with_the_way_on() -> None:
    job = Job()
    job.cluster.starts = {"log": {0: 100, 1: 150}}
    with pytest.raises(PipelineError, match=r"log-1 offsets 100 to 149\. .* run the job with --accept-lost log;"):
        job.topics().check(once=False)
    job.cluster.starts = {"log": dict.fromkeys(range(5), 150)}
    with pytest.raises(
        PipelineError, match=r"log-0 .* 100 to 149, log-1 .*, log-2 offsets 0 to 149 and 2 more partitions\."
    ):
        job.topics().check(once=False)


def test_accepted_losses_are_skipped_and_the_other_partitions_continue() -> None:
    job = Job()
    job.cluster.starts = {"log": {0: 60, 1: 150}}
    job.topics(losses=AcceptedLosses(["log"])).check(once=False)
    assert job.checkpoint.last_offsets() == {"log": {"0": 100, "1": 150}}
    job.topics().check(once=False)


def test_only_records_lost_before_the_driver_started_are_accepted() -> None:
    job = Job()
    losses = AcceptedLosses(["log"])
    job.topics(losses=losses).check(once=False)
    job.cluster.starts = {"log": {0: 150, 1: 0}}
    with pytest.raises(PipelineError, match="log-0 offsets 100 to 149"):
        job.topics(losses=losses).check(once=False)


def test_a_job_that_has_read_nothing_has_lost_nothing() -> None:
    job = Job()
    job.files.clear()
    job.cluster.starts = {"log": {0: 150}}
    job.topics().check(once=False)
