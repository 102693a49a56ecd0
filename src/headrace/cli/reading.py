"""Read a topic, alone or in a group, and write the records batch by batch."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from headrace.cli import output
from headrace.cli.cluster import Cluster, Offsets, client_config, topic_exists
from headrace.cli.failures import CommandError, refused
from headrace.cli.interruption import Interruption
from headrace.cli.positions import Position, Start
from headrace.cli.text_lines import Formatter

_BATCH = 1000
_WAKE_UP_S = 0.25
"""In an idle topic, Ctrl-C and timeouts are noticed within this time."""

_LEAVING_S = 5.0
_LEAVING_STEP_S = 0.02
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Arguments of `consume`. A `partition` of None means all; the other fields are None if they do not apply."""

    topic: str
    partition: int | None
    start: Position
    group: str | None
    limit: int | None
    until_end: bool
    timeout_s: float | None
    quiet: bool = False


@dataclass(slots=True)
class Outcome:
    """Totals of the printed records, and why reading stopped."""

    topic: str
    records: int = 0
    size: int = 0
    """Bytes of values."""
    seconds: float = 0.0
    interrupted: bool = False
    lost: CommandError | None = None
    """Set if the timeout passed because no broker replied, or because the topic was deleted."""

    def summary(self) -> str:
        what = f"{output.count(self.records, 'record')} ({output.size(self.size)}) from {self.topic}"
        return f"{what} in {output.seconds(self.seconds)}"


def read(cluster: Cluster, reading: Reading, formatter: Formatter, out: BinaryIO) -> Outcome:
    """Write records until the end of `reading`, or Ctrl-C. Raises CommandError and BrokenPipeError.

    A group's offsets are committed only for records that were written.
    """
    partitions = cluster.partitions(reading.topic, reading.partition)
    outcome = Outcome(reading.topic)
    started = time.monotonic()
    try:
        with Interruption() as interruption, _Reader(cluster, reading, partitions) as reader:
            for messages in reader.batches(interruption):
                with output.writing():
                    out.write(b"".join([formatter(message) + b"\n" for message in messages]))
                    out.flush()
                reader.written(messages)
                outcome.records += len(messages)
                outcome.size += sum(map(len, messages))
            outcome.interrupted = interruption.asked
            outcome.lost = reader.lost
    except KafkaException as error:
        raise refused(error.args[0], cluster.bootstrap, f"consuming from '{reading.topic}'") from None
    outcome.seconds = time.monotonic() - started
    return outcome


class _Reader:
    """A consumer, and the end offsets it has yet to reach. On exit, it leaves its group and closes if possible."""

    def __init__(self, cluster: Cluster, reading: Reading, partitions: list[int]) -> None:
        self._cluster = cluster
        self._reading = reading
        self._ends: dict[int, int] = {}
        self._assigned = False
        self._cut_off = False
        self.lost: CommandError | None = None
        self._is_alone = False
        """True if no broker replies."""
        self._consumer = Consumer(_config(cluster.bootstrap, reading, self._on_error))
        if reading.group is None:
            self._assign(self._consumer, [TopicPartition(reading.topic, number) for number in partitions])
        else:
            self._consumer.subscribe([reading.topic], on_assign=self._assign, on_revoke=self._revoke)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # If no broker replies, closing takes a minute: leave the consumer open.
        if self._reading.group is not None and (
            self._is_alone or topic_exists(self._consumer, self._reading.topic) is None
        ):
            _keep_for_ever(self._consumer)
            return
        with contextlib.suppress(KafkaException):
            self._leave()
            self._consumer.close()

    def _leave(self) -> None:
        """Leave the group before closing.

        librdkafka's close waits forever, and keeps the GIL, if an assignment arrives meanwhile (its pull request 4883).
        """
        if self._reading.group is None:
            return
        self._consumer.unsubscribe()
        deadline = time.monotonic() + _LEAVING_S
        while self._consumer.assignment() and time.monotonic() < deadline:
            self._consumer.poll(_LEAVING_STEP_S)

    def batches(self, interruption: Interruption) -> Iterator[list[Message]]:
        """Yield records as they arrive, up to the limit."""
        left = self._reading.limit
        last = time.monotonic()
        while not interruption.asked and (left is None or left > 0):
            if self._reading.until_end and self._assigned and not self._ends:
                return
            asked = _BATCH if left is None else min(left, _BATCH)
            messages = self._wanted(self._fetched(asked))
            if messages:
                self._cut_off = False
                left = None if left is None else left - len(messages)
                yield messages
                last = time.monotonic()
            elif self._reading.timeout_s is not None and time.monotonic() - last >= self._reading.timeout_s:
                self._check_topic()
                return

    def _check_topic(self) -> None:
        """Set `lost` if the topic was deleted or no broker replies; otherwise there are just no new records."""
        topic, doing = self._reading.topic, f"consuming from '{self._reading.topic}'"
        has_topic = topic_exists(self._consumer, topic)
        self._is_alone = has_topic is None
        if has_topic is None:
            self.lost = CommandError(
                f"lost the connection to {self._cluster.bootstrap} while {doing}; there may be more records",
                "Check that a broker is running. A group continues where it stopped; without a group, use --from.",
            )
        elif not has_topic:
            self.lost = CommandError(f"topic '{topic}' was deleted while {doing}")

    def written(self, messages: list[Message]) -> None:
        """Allow the offsets of these records to be committed."""
        if self._reading.group is None:
            return
        next_offsets = {message.partition(): message.offset() for message in messages}
        for partition, offset in next_offsets.items():
            if partition is not None and offset is not None:
                # Fails if the partition has been revoked: only its new owner may commit.
                with contextlib.suppress(KafkaException):
                    self._consumer.store_offsets(offsets=[TopicPartition(self._reading.topic, partition, offset + 1)])

    def _fetched(self, most: int) -> list[Message]:
        """Return the records that have arrived; `consume` alone would wait until there are `most`."""
        first = self._consumer.poll(_WAKE_UP_S)
        if first is None:
            if self._reading.until_end:
                self._finish_passed()
            return []
        return [first, *self._consumer.consume(most - 1, timeout=0)] if most > 1 else [first]

    def _wanted(self, messages: list[Message]) -> list[Message]:
        wanted = []
        for message in messages:
            error = message.error()
            if error is not None:
                self._note(message, error)
                continue
            if self._reading.until_end:
                partition, offset = message.partition(), message.offset()
                end = self._ends.get(partition) if partition is not None else None
                if end is None or offset is None or partition is None:
                    continue
                if offset + 1 >= end:
                    self._finished(partition)
                if offset >= end:
                    continue
            wanted.append(message)
        return wanted

    def _finish_passed(self) -> None:
        """Finish the partitions whose position has passed the end without a record.

        Transaction markers and records of aborted transactions move the position, but are not returned. While more of
        them arrive, there is no EOF.
        """
        places = [TopicPartition(self._reading.topic, number) for number in self._ends]
        for place in self._consumer.position(places) if places else ():
            if place.offset >= self._ends[place.partition]:
                self._finished(place.partition)

    def _note(self, message: Message, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            # The last offset may belong to a transaction marker or have been compacted away.
            if message.partition() is not None:
                self._finished(message.partition())
        elif not error.retriable():
            raise refused(error, self._cluster.bootstrap, f"consuming from '{self._reading.topic}'")

    def _finished(self, partition: int | None) -> None:
        if partition is not None and self._ends.pop(partition, None) is not None:
            self._consumer.pause([TopicPartition(self._reading.topic, partition)])

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = [partition.partition for partition in partitions]
        known = self._cluster.offsets(self._reading.topic, numbers)
        starts = self._starts(known)
        committed: dict[int, int] = {}
        if self._reading.group is not None and partitions:
            answers = consumer.committed(partitions, timeout=10.0)
            committed = {answer.partition: answer.offset for answer in answers if answer.offset >= 0}
        self._report_clamping(known, committed)
        starts |= committed
        self._ends = {number: end for number, end in self._ends.items() if starts[number] < end}
        consumer.assign([TopicPartition(self._reading.topic, number, starts[number]) for number in numbers])
        self._assigned = True

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._ends.pop(partition.partition, None)
        consumer.unassign()
        self._assigned = False

    def _starts(self, known: Mapping[int, Offsets]) -> dict[int, int]:
        topic, start = self._reading.topic, self._reading.start
        at_time = self._cluster.offsets_at(topic, list(known), start.number) if start.start is Start.TIME else {}
        starts = {}
        for partition, held in known.items():
            offset = start.offset(held.earliest, held.latest)
            if offset is None:
                # -1: all records are older.
                offset = at_time[partition] if at_time[partition] >= 0 else held.latest
            starts[partition] = offset
            self._ends[partition] = held.latest
        return starts

    def _report_clamping(self, known: Mapping[int, Offsets], committed: Mapping[int, int]) -> None:
        """Print the offsets of the partitions that do not have the requested offset."""
        if self._reading.start.start is not Start.OFFSET or self._reading.quiet:
            return
        asked = self._reading.start.number
        outside = [
            f"partition {number} has {_range(held)}"
            for number, held in sorted(known.items())
            if number not in committed and not held.earliest <= asked <= held.latest
        ]
        if outside:
            more = f" and {len(outside) - _SHOWN} more" if len(outside) > _SHOWN else ""
            output.tell(
                f"Offset {asked} of {self._reading.topic} is out of range: {'; '.join(outside[:_SHOWN])}{more}."
            )

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN and not self._cut_off:
            self._cut_off = True
            if not self._reading.quiet:
                output.warn(
                    f"Lost the connection to {self._cluster.bootstrap}; trying to reconnect. Press Ctrl-C to stop."
                )


def _keep_for_ever(consumer: Consumer) -> None:
    """Keep a group member whose broker hangs: while freeing it, librdkafka would spin until the session times out."""
    threading.Thread(target=lambda _: threading.Event().wait(), args=(consumer,), daemon=True).start()


def _range(held: Offsets) -> str:
    if held.earliest == held.latest:
        return f"no records, and its next offset is {held.latest}"
    return f"{held.earliest} to {held.latest - 1}"


def _config(bootstrap: str, reading: Reading, on_error: Callable[[KafkaError], None]) -> dict[str, Any]:
    return client_config(
        bootstrap,
        on_error,
        group_id=reading.group or "headrace-consume",
        enable_auto_commit=reading.group is not None,
        enable_auto_offset_store=False,
        auto_offset_reset="earliest",
        enable_partition_eof=reading.until_end,
    )
