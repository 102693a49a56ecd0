"""DescribeTransactions, ListTransactions (KIP-664), and WriteTxnMarkers (KIP-98)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

from headrace.clock import now_ms
from headrace.coordinator.endings import MarkerWriter
from headrace.coordinator.groups.expressions import compiled
from headrace.coordinator.transaction_coordinator import TransactionCoordinator
from headrace.coordinator.transactions.machine import WriteMarkers
from headrace.coordinator.transactions.states import STATE_OF_NAME, ProducerIdentity, TransactionMetadata
from headrace.errors import ErrorCode, KafkaError
from headrace.server.context import Answer, ClientInfo, Handler, RequestContext
from headrace.server.frames import InvalidRequestError
from headrace.slices import Steps, finish, in_slices
from headrace.types import Request, TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.encoder import Fields
from headrace.wire.items import made_of

_PER_SLICE: Final = 256
"""Transactional ids to handle without a pause."""
_MATCHED_AT_ONCE: Final = 32_768
"""Characters of ids that a thread matches in one call, unless one id is longer. A slow expression may take seconds."""

_Listed: TypeAlias = dict[str, Any]
"""A transaction in the reply to ListTransactions."""
_Wait: TypeAlias = tuple[dict[str, Any], "asyncio.Future[KafkaError | None]"]
"""The reply for a partition, and the future that it waits for."""


class TransactionAdminApis:
    """Handles ListTransactions, DescribeTransactions and WriteTxnMarkers."""

    def __init__(self, coordinator: TransactionCoordinator, markers: MarkerWriter) -> None:
        self._coordinator = coordinator
        self._markers = markers
        self._matching = asyncio.Lock()
        """Held while a thread matches ids."""

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_TRANSACTIONS: self.describe,
            ApiKey.LIST_TRANSACTIONS: self.list_,
            ApiKey.WRITE_TXN_MARKERS: self.write_markers,
        }

    def describe(self, _: RequestContext, request: Request) -> Fields:
        return {"transaction_states": made_of(request.transactional_ids, self._describe_one)}

    def _describe_one(self, name: str) -> Fields:
        try:
            metadata = self._coordinator.describe(name)
        except KafkaError as error:
            return _described(name, error.code, TransactionMetadata(0, 0, 0, start_ms=0), state="")
        return _described(name, ErrorCode.none, metadata, state=metadata.state.kafka_name)

    def list_(self, context: RequestContext, request: Request) -> Answer:
        """List the transactional ids that match the filters: states, producer ids, minimum age and pattern."""
        return in_slices(self._list(context.client, request))

    def _list(self, client: ClientInfo, request: Request) -> Steps[Fields | Awaitable[Fields]]:
        unknown = [state_filter for state_filter in request.state_filters if state_filter not in STATE_OF_NAME]
        states = {
            STATE_OF_NAME[state_filter] for state_filter in request.state_filters if state_filter in STATE_OF_NAME
        }
        producers = set(request.producer_id_filters)
        longer_than_ms = getattr(request, "duration_filter", -1)
        pattern = getattr(request, "transactional_id_pattern", None)
        begun_before = now_ms() - longer_than_ms
        found: list[_Listed] = []
        try:
            expression = compiled(pattern) if pattern else None
            for number, (name, metadata) in enumerate(self._coordinator.all()):
                if number % _PER_SLICE == _PER_SLICE - 1:
                    yield
                if (
                    (request.state_filters and metadata.state not in states)
                    or (producers and metadata.producer_id not in producers)
                    or (longer_than_ms >= 0 and metadata.start_ms >= begun_before)
                ):
                    continue
                found.append(
                    {
                        "transactional_id": name,
                        "producer_id": metadata.producer_id,
                        "transaction_state": metadata.state.kafka_name,
                    }
                )
        except KafkaError as error:
            return {"error_code": error.code, "unknown_state_filters": unknown, "transaction_states": []}
        if expression is not None:
            return self._matched(client, expression.fullmatch, found, unknown)
        return _listed(found, unknown)

    async def _matched(
        self, client: ClientInfo, match: Callable[[bytes], Any], found: list[_Listed], unknown: list[str]
    ) -> Fields:
        """Return the transactions whose ids match.

        A thread matches them, because RE2 may need seconds for one id of 32 KB; meanwhile it releases the GIL.
        Raises InvalidRequestError if the client hangs up.
        """
        matches: list[_Listed] = []
        async with self._matching:
            for some in _in_portions(found):
                if client.has_hung_up:
                    raise InvalidRequestError("the client hung up before its ListTransactions request was answered")
                matches += await asyncio.to_thread(_matching, match, some)
        return _listed(matches, unknown)

    async def write_markers(self, _: RequestContext, request: Request) -> Fields:
        """Write markers for a coordinator, or for an administrator who ends hanging transactions (KIP-664)."""
        answers, waits = await finish(self._write(request))
        for partition, waiting in waits:
            error = await waiting
            if error is not None:
                partition["error_code"] = error.code
        return {"markers": answers}

    def _write(self, request: Request) -> Steps[tuple[list[Fields], list[_Wait]]]:
        answers: list[Fields] = []
        waits: list[_Wait] = []
        for marker in request.markers:
            yield
            version = getattr(marker, "transaction_version", 0)
            # As in Kafka, where the append of an invalid marker fails.
            is_valid = marker.producer_id >= 0 and version >= 0
            markers = WriteMarkers(
                ProducerIdentity(marker.producer_id, marker.producer_epoch),
                marker.transaction_result,
                frozenset(),
                version,
            )
            topics = []
            for topic in marker.topics:
                partitions = []
                yield
                for index in topic.partition_indexes:
                    yield
                    answer: dict[str, Any] = {"partition_index": index, "error_code": ErrorCode.none}
                    partitions.append(answer)
                    if not is_valid:
                        answer["error_code"] = ErrorCode.unknown_server_error
                        continue
                    try:
                        waiting = self._markers.write(
                            TopicPartition(topic.name, index), markers, marker.coordinator_epoch
                        )
                    except KafkaError as error:
                        answer["error_code"] = error.code
                    else:
                        if waiting is not None:
                            waits.append((answer, waiting))
                topics.append({"name": topic.name, "partitions": partitions})
            if topics:
                answers.append({"producer_id": marker.producer_id, "topics": topics})
        return answers, waits


def _listed(transactions: list[_Listed], unknown: list[str]) -> Fields:
    return {"error_code": ErrorCode.none, "unknown_state_filters": unknown, "transaction_states": transactions}


def _in_portions(transactions: Iterable[_Listed]) -> Iterator[list[_Listed]]:
    portion: list[_Listed] = []
    size = 0
    for transaction in transactions:
        length = len(transaction["transactional_id"])
        if portion and size + length > _MATCHED_AT_ONCE:
            yield portion
            portion, size = [], 0
        portion.append(transaction)
        size += length
    if portion:
        yield portion


def _matching(match: Callable[[bytes], Any], transactions: list[_Listed]) -> list[_Listed]:
    return [transaction for transaction in transactions if match(transaction["transactional_id"].encode())]


def _described(name: str, code: ErrorCode, metadata: TransactionMetadata, *, state: str) -> Fields:
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(metadata.partitions):
        by_topic.setdefault(topic, []).append(index)
    return {
        "error_code": code,
        "transactional_id": name,
        "transaction_state": state,
        "transaction_timeout": metadata.timeout_ms,
        "transaction_start_time": metadata.start_ms,
        "producer_id": metadata.producer_id,
        "producer_epoch": metadata.producer_epoch,
        "topics": [{"topic": topic, "partitions": indexes} for topic, indexes in by_topic.items()],
    }
