"""Transactions across brokers: write markers on other brokers, and verify transactions with other coordinators."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from kio.schema.add_partitions_to_txn.v4 import request as add_partitions
from kio.schema.add_partitions_to_txn.v4.response import AddPartitionsToTxnResponse
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.schema.write_txn_markers.v1 import request as write_markers
from kio.schema.write_txn_markers.v1.response import WriteTxnMarkersResponse
from kio.static.primitive import i16, i32

from headrace.client.link import Link, LinkError
from headrace.coordinator.transactions.machine import WriteMarkers
from headrace.errors import ErrorCode, KafkaError
from headrace.types import TopicPartition

_MOST_MARKERS: Final = 1000
"""Maximum number of markers in a request, counted per partition."""

log = logging.getLogger(__name__)


class _Marker(NamedTuple):
    """The marker of a transaction."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int


class _Waiting(NamedTuple):
    """A marker for a partition. The result of `done` is None if the marker was committed, otherwise the error."""

    marker: _Marker
    partition: TopicPartition
    done: "asyncio.Future[KafkaError | None]"


class OtherBrokers:
    """The transaction protocol between brokers. `link_to` returns a new link to a broker, with or without ApiVersions.

    `leader_of` returns the broker that leads a partition, or -1 if no other broker does. `coordinator_of` returns the
    coordinator of a transactional id: a broker id, None for this broker, or -1 if there is none.
    """

    def __init__(
        self,
        leader_of: Callable[[TopicPartition], int],
        coordinator_of: Callable[[str], int | None],
        link_to: Callable[[int, bool], Link],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._leader_of = leader_of
        self._coordinator_of = coordinator_of
        self._link_to = link_to
        self._loop = loop
        self._writers: dict[int, _MarkerWriter] = {}
        self._coordinators: dict[int, Link] = {}

    def write_marker(
        self, partition: TopicPartition, markers: WriteMarkers, coordinator_epoch: int
    ) -> "asyncio.Future[KafkaError | None]":
        """Send a marker to the partition's leader. Raises KafkaError(leader_not_available) if it has none."""
        leader = self._leader_of(partition)
        if leader < 0:
            raise KafkaError(ErrorCode.leader_not_available, f"{partition} has no leader")
        writer = self._writers.get(leader)
        if writer is None:
            writer = self._writers[leader] = _MarkerWriter(self._link_to(leader, False), self._loop)
        producer_id, epoch = markers.producer
        return writer.write(_Marker(producer_id, epoch, markers.commit, coordinator_epoch), partition)

    def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> Awaitable[Mapping[TopicPartition, ErrorCode]] | None:
        """Ask another coordinator whether the partitions are in the transaction (KIP-890), and return their errors.

        Return None if this broker is the coordinator.
        """
        coordinator = self._coordinator_of(transactional_id)
        if coordinator is None:
            return None
        return self._verify(coordinator, transactional_id, producer_id, producer_epoch, partitions)

    async def _verify(
        self,
        coordinator: int,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
    ) -> Mapping[TopicPartition, ErrorCode]:
        if coordinator < 0:
            return dict.fromkeys(partitions, ErrorCode.coordinator_not_available)
        request = add_partitions.AddPartitionsToTxnRequest(
            transactions=(
                add_partitions.AddPartitionsToTxnTransaction(
                    transactional_id=TransactionalId(transactional_id),
                    producer_id=ProducerId(producer_id),
                    producer_epoch=i16(producer_epoch),
                    verify_only=True,
                    topics=tuple(
                        add_partitions.AddPartitionsToTxnTopic(
                            name=TopicName(topic), partitions=tuple(i32(index) for index in indexes)
                        )
                        for topic, indexes in _by_topic(partitions).items()
                    ),
                ),
            )
        )
        link = self._coordinators.get(coordinator)
        if link is None:
            link = self._coordinators[coordinator] = self._link_to(coordinator, True)
        try:
            reply = await link.call(request, 4, AddPartitionsToTxnResponse)
        except LinkError as error:
            text = "Coordinator %d did not verify transactional id %s, so its producer has to retry: %s"
            log.warning(text, coordinator, transactional_id, error)
            return dict.fromkeys(partitions, ErrorCode.network_exception)
        if reply.error_code is not ErrorCode.none:
            return dict.fromkeys(partitions, reply.error_code)
        return {
            TopicPartition(topic.name, result.partition_index): result.partition_error_code
            for transaction in reply.results_by_transaction
            for topic in transaction.topic_results
            for result in topic.results_by_partition
            if result.partition_error_code is not ErrorCode.none
        }

    async def close(self) -> None:
        """Stop sending. The next coordinator writes the remaining markers."""
        for link in self._coordinators.values():
            link.close()
        for writer in self._writers.values():
            await writer.close()


class _MarkerWriter:
    """Sends markers to one broker, and combines those that arrive together in one request."""

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        self._link = link
        self._loop = loop
        self._waiting: list[_Waiting] = []
        self._sending: asyncio.Task[None] | None = None

    def write(self, marker: _Marker, partition: TopicPartition) -> "asyncio.Future[KafkaError | None]":
        done: asyncio.Future[KafkaError | None] = self._loop.create_future()
        self._waiting.append(_Waiting(marker, partition, done))
        if self._sending is None or self._sending.done():
            self._sending = self._loop.create_task(self._send())
        return done

    async def close(self) -> None:
        self._link.close()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])

    async def _send(self) -> None:
        while self._waiting:
            sent, self._waiting = self._waiting[:_MOST_MARKERS], self._waiting[_MOST_MARKERS:]
            try:
                reply = await self._link.call(_request(sent), 1, WriteTxnMarkersResponse)
            except LinkError as error:
                # The coordinator tries again, perhaps with another leader.
                failure = KafkaError(ErrorCode.not_leader_or_follower, str(error))
                results: Mapping[tuple[int, TopicPartition], ErrorCode] = {}
            else:
                failure = KafkaError(ErrorCode.unknown_server_error, "the reply to WriteTxnMarkers lacks the partition")
                results = _results(reply)
            for waiting in sent:
                code = results.get((waiting.marker.producer_id, waiting.partition))
                if code is ErrorCode.unknown_topic_or_partition:
                    code = ErrorCode.not_leader_or_follower  # that broker's metadata is out of date
                if not waiting.done.done():
                    waiting.done.set_result(failure if code is None else KafkaError(code) if code else None)


def _request(waiting: Sequence[_Waiting]) -> write_markers.WriteTxnMarkersRequest:
    by_marker: dict[_Marker, list[TopicPartition]] = {}
    for marker, partition, _ in waiting:
        by_marker.setdefault(marker, []).append(partition)
    return write_markers.WriteTxnMarkersRequest(
        markers=tuple(
            write_markers.WritableTxnMarker(
                producer_id=ProducerId(marker.producer_id),
                producer_epoch=i16(marker.producer_epoch),
                transaction_result=marker.commit,
                topics=tuple(
                    write_markers.WritableTxnMarkerTopic(
                        name=TopicName(topic), partition_indexes=tuple(i32(index) for index in indexes)
                    )
                    for topic, indexes in _by_topic(partitions).items()
                ),
                coordinator_epoch=i32(marker.coordinator_epoch),
            )
            for marker, partitions in by_marker.items()
        )
    )


def _results(reply: WriteTxnMarkersResponse) -> dict[tuple[int, TopicPartition], ErrorCode]:
    return {
        (marker.producer_id, TopicPartition(topic.name, partition.partition_index)): partition.error_code
        for marker in reply.markers
        for topic in marker.topics
        for partition in topic.partitions
    }


def _by_topic(partitions: Sequence[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return topics
