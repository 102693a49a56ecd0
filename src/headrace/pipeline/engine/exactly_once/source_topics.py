"""The topics that a job reads. Each start checks that the checkpoint still fits them."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from headrace.pipeline.engine.exactly_once import topic_ids
from headrace.pipeline.engine.exactly_once.checkpoint import Checkpoint
from headrace.pipeline.engine.exactly_once.ledger import Ledger, Offsets
from headrace.pipeline.engine.exactly_once.losses import AcceptedLosses, described
from headrace.pipeline.engine.topics import UnknownTopicError
from headrace.pipeline.errors import PipelineError, TemporaryError

log = logging.getLogger(__name__)


class Topics(Protocol):
    """The calls to the cluster that the checks need."""

    def awaited_ids(self, names: Iterable[str]) -> Mapping[str, str]: ...

    def start_offsets(self, names: Iterable[str]) -> Offsets: ...


class SourceTopics:
    """The source topics of one version of a job; none if the job reads a table."""

    def __init__(
        self,
        job: str,
        version: int,
        names: Sequence[str],
        *,
        topics: Topics,
        ledger: Ledger,
        checkpoint: Checkpoint,
        accepted: topic_ids.Accepted,
        losses: AcceptedLosses,
    ) -> None:
        self.names = names
        self.ids: Mapping[str, str] = {}
        """Topic ids by name, as of the last `check`; empty if the cluster has no topic ids."""
        self._job = job
        self._version = version
        self._topics = topics
        self._ledger = ledger
        self._checkpoint = checkpoint
        self._accepted = accepted
        self._losses = losses

    def check(self, *, once: bool) -> None:
        """Raise TopicChangedError if a topic was re-created since the job read it, unless the user accepts the new one.

        An accepted topic is read from its beginning. Tables and state keep the data of the old topic. If a topic does
        not exist, raise TemporaryError: it may be created later. With `once`, raise PipelineError instead for a topic
        that the job has not read yet.

        Raise PipelineError if records that the job has not read were deleted, unless the user accepts the loss. The
        job then continues with the oldest records that are left.
        """
        found = self._topics.awaited_ids(self.names)
        self.ids = _with_id(found)
        self._check_ids()
        if missing := [topic for topic in self.names if topic not in found]:
            name = missing[0]
            what = f"topic {name} does not exist; create it with `headrace topics create {name}`"
            raise PipelineError(what) if once else TemporaryError(what)
        self._check_starts()

    def check_unchanged(self) -> None:
        """Raise like `check` if a topic was deleted or re-created since `check`. Nothing is accepted."""
        topic_ids.check(self.ids, _with_id(self._topics.awaited_ids(self.names)), job=self._job)

    def _check_ids(self) -> None:
        last = self._ledger.last()
        if last is None or last.version != self._version:
            return
        again = self._accepted.created_again(last.topic_ids, self.ids)
        same = {topic: topic_id for topic, topic_id in last.topic_ids.items() if topic not in again}
        topic_ids.check(same, self.ids, job=self._job)
        if again:
            log.warning("%s: reading re-created topics from the beginning: %s", self._job, ", ".join(again))
            self._checkpoint.move(self._starts(again))

    def _check_starts(self) -> None:
        """Compare the checkpoint with the logs. Spark would fail in every attempt, without naming the cause."""
        next_offsets = self._checkpoint.next_offsets() if self.names else {}
        if not next_offsets:
            return
        skipped: dict[str, dict[int, int]] = {}
        for topic, starts in self._starts(self.names).items():
            read = next_offsets.get(topic, {})
            lost = {at: range(read.get(at, 0), start) for at, start in starts.items() if start > read.get(at, 0)}
            accepted = self._losses.covers(topic, starts, lost)
            if lost and not accepted:
                raise PipelineError(
                    f"job {self._job} did not read all records of topic {topic} before they were deleted, by retention "
                    f"or by a user: {described(topic, lost)}. To continue without them, run the job with --accept-lost "
                    f"{topic}; the audit then reports them as missing"
                )
            if lost:
                log.warning("%s: continuing without lost records: %s", self._job, described(topic, lost))
                skipped[topic] = {at: offsets.stop for at, offsets in lost.items()}
        if skipped:
            self._checkpoint.skip_to(skipped)

    def _starts(self, names: Sequence[str]) -> Offsets:
        try:
            return self._topics.start_offsets(names)
        except UnknownTopicError as error:  # another broker knew the topics a moment ago
            raise TemporaryError(str(error)) from error


def _with_id(topics: Mapping[str, str]) -> Mapping[str, str]:
    return {topic: topic_id for topic, topic_id in topics.items() if topic_id}
