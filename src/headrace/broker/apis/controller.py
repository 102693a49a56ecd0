"""Requests to the controller of a cluster. Other brokers reject them; clients find the controller with Metadata."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final, TypeVar

from headrace.broker.apis.placement import PREFERRED, UNCLEAN
from headrace.broker.apis.topics import TopicApis
from headrace.cluster.controller.context import UNKNOWN_EPOCH
from headrace.cluster.controller.isr import Proposal
from headrace.cluster.controller.machine import ControllerMachine
from headrace.cluster.controller.work import Effect
from headrace.cluster.image import LeaderState
from headrace.cluster.metadata_cache import MetadataCache
from headrace.cluster.offices.candidate import Candidate
from headrace.cluster.offices.topic_admin import ClusterTopicAdmin
from headrace.cluster.producer_id_blocks import ProducerIdBlocks
from headrace.errors import ErrorCode, KafkaError
from headrace.server.context import Answer, Handler, Reply, RequestContext
from headrace.slices import Pace, chunks
from headrace.types import Request, TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.encoder import Fields
from headrace.wire.items import made_of

T = TypeVar("T")

_WITH_EPOCHS: Final = 3
"""The first version of AlterPartition in which members of the ISR have epochs (KIP-903)."""
_AT_ONCE: Final = 1000
"""Partitions to handle without a pause."""
_UNKNOWN: Final = KafkaError(ErrorCode.unknown_topic_or_partition, "The partition does not exist.")


class ControllerApis:
    """Handles the requests of clients and brokers to the controller.

    `topics` has the handlers that create, grow and delete topics.
    """

    def __init__(
        self,
        candidate: Candidate,
        cache: MetadataCache,
        topics: TopicApis,
        admin: ClusterTopicAdmin,
        blocks: ProducerIdBlocks,
    ) -> None:
        self._candidate = candidate
        self._cache = cache
        self._topics = topics
        self._admin = admin
        self._blocks = blocks

    def routes(self) -> dict[ApiKey, Handler]:
        handlers: dict[ApiKey, Handler] = {
            **self._topics.routes(),
            ApiKey.ELECT_LEADERS: self.elect_leaders,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: self.alter_partition_reassignments,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: self.list_partition_reassignments,
            ApiKey.UPDATE_FEATURES: self.update_features,
            ApiKey.ALTER_PARTITION: self.alter_partition,
            ApiKey.ALLOCATE_PRODUCER_IDS: self.allocate_producer_ids,
            ApiKey.CONTROLLED_SHUTDOWN: self.controlled_shutdown,
        }
        return {key: self._guarded(handler) for key, handler in handlers.items()}

    def _guarded(self, handler: Handler) -> Handler:
        def handle(context: RequestContext, request: Request) -> Answer:
            self._candidate.current()
            return handler(context, request)

        return handle

    # Clients

    async def elect_leaders(self, context: RequestContext, request: Request) -> Reply:
        """Elect the preferred replicas, or live replicas of partitions that have no leader (KIP-460)."""
        election_type = getattr(request, "election_type", PREFERRED)
        if election_type not in (PREFERRED, UNCLEAN):
            raise KafkaError(
                ErrorCode.invalid_request, f"Unknown election type {election_type}: use 0 (preferred) or 1 (unclean)."
            )
        asked = request.topic_partitions
        if asked is None:
            wanted = (
                TopicPartition(name, index)
                for name, topic in self._cache.image.topics.items()
                for index in range(len(topic.partitions))
            )
        else:
            wanted = (TopicPartition(topic.topic, index) for topic in asked for index in topic.partitions)
        existing, unknown = await self._looked_up(wanted)
        results = await self._candidate.current().ask(
            "election", lambda machine: machine.elect(existing, unclean=election_type == UNCLEAN)
        )
        leaders = {partition: leader for partition, leader in results.items() if isinstance(leader, int)}
        late = await self._admin.led_by(leaders, request.timeout.total_seconds())
        errors: dict[TopicPartition, KafkaError | None] = dict.fromkeys(unknown, _UNKNOWN)
        errors.update(
            (partition, result if isinstance(result, KafkaError) else None) for partition, result in results.items()
        )
        errors.update((partition, KafkaError(ErrorCode.request_timed_out)) for partition in late)
        if asked is None:
            errors = {
                partition: error
                for partition, error in errors.items()
                if error is None or error.code is not ErrorCode.election_not_needed
            }
        return {
            "error_code": ErrorCode.none,
            "replica_election_results": [
                {"topic": name, "partition_result": made_of(partitions, partial(_failed, "partition_id"))}
                for name, partitions in await _by_topic(errors)
            ],
        }

    async def alter_partition_reassignments(self, _: RequestContext, request: Request) -> Reply:
        """Start, change and cancel reassignments (KIP-455, KIP-860)."""
        replicas: dict[TopicPartition, Sequence[int] | None] = {}
        pace = Pace()
        for topic in request.topics:
            for some in chunks(topic.partitions, _AT_ONCE):
                replicas |= {TopicPartition(topic.name, item.partition_index): item.replicas for item in some}
                await pace.rest()
        existing, unknown = await self._looked_up(replicas)
        targets = {partition: replicas[partition] for partition in existing}
        resize = getattr(request, "allow_replication_factor_change", True)
        results = await self._candidate.current().ask(
            "reassignment", lambda machine: machine.reassign(targets, resize=resize)
        )
        results.update(dict.fromkeys(unknown, _UNKNOWN))
        return {
            "allow_replication_factor_change": resize,
            "error_code": ErrorCode.none,
            "error_message": None,
            "responses": [
                {"name": name, "partitions": made_of(partitions, partial(_failed, "partition_index"))}
                for name, partitions in await _by_topic(results)
            ],
        }

    async def list_partition_reassignments(self, _: RequestContext, request: Request) -> Reply:
        wanted: Sequence[TopicPartition] | None = None
        if request.topics is not None:
            wanted = [TopicPartition(topic.name, item) for topic in request.topics for item in topic.partition_indexes]
        found = await self._candidate.current().ask(
            "list reassignments", lambda machine: (machine.reassignments(wanted), ())
        )
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "topics": [
                {
                    "name": name,
                    "partitions": [
                        {
                            "partition_index": index,
                            "replicas": moving.replicas,
                            "adding_replicas": moving.adding,
                            "removing_replicas": moving.removing,
                        }
                        for index, moving in partitions
                    ],
                }
                for name, partitions in await _by_topic(found)
            ],
        }

    async def _looked_up(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Return the existing partitions, without duplicates, and the unknown ones.

        The lookup pauses between chunks, because a request may name many partitions that do not exist.
        """
        term = self._candidate.current()
        existing: dict[TopicPartition, None] = {}
        unknown: list[TopicPartition] = []
        for some in chunks(partitions, _AT_ONCE):
            exists = await term.ask("lookup", partial(_existence, some))
            existing.update((partition, None) for partition, known in zip(some, exists, strict=True) if known)
            unknown += [partition for partition, known in zip(some, exists, strict=True) if not known]
        return list(existing), unknown

    def update_features(self, _: RequestContext, request: Request) -> Reply:
        """Reject all features: a cluster with ZooKeeper has none (KIP-584)."""
        raise KafkaError(
            ErrorCode.invalid_request,
            "Could not apply finalized feature update because the provided feature is not supported.",
        )

    # Brokers

    async def alter_partition(self, context: RequestContext, request: Request) -> Reply:
        """Change the ISR of partitions that a broker leads (KIP-497)."""

        def decide(machine: ControllerMachine) -> tuple[list[dict[str, Any]], Iterable[Effect]]:
            names = machine.context.topic_names
            proposals = [
                _proposal(TopicPartition(names[topic.topic_id], partition.partition_index), partition, version)
                for topic in request.topics
                if topic.topic_id in names
                for partition in topic.partitions
            ]
            answers, effects = machine.alter_partitions(request.broker_id, request.broker_epoch, proposals)
            return [_altered(topic, names.get(topic.topic_id), answers) for topic in request.topics], effects

        version = context.api_version
        return {
            "error_code": ErrorCode.none,
            "topics": await self._candidate.current().ask("isr", decide),
        }

    async def allocate_producer_ids(self, _: RequestContext, request: Request) -> Reply:
        """Allocate a block of producer ids to a broker (KIP-730)."""

        def check(machine: ControllerMachine) -> tuple[None, Iterable[Effect]]:
            known = machine.context.brokers.get(request.broker_id)
            if known is None:
                raise KafkaError(ErrorCode.broker_id_not_registered)
            if known.epoch != request.broker_epoch:
                raise KafkaError(ErrorCode.stale_broker_epoch)
            return None, ()

        await self._candidate.current().ask("producer ids", check)
        first, size = await self._blocks.allocate()
        return {"error_code": ErrorCode.none, "producer_id_start": first, "producer_id_len": size}

    async def controlled_shutdown(self, _: RequestContext, request: Request) -> Reply:
        """Move leadership away from a broker that is about to stop."""
        remaining = await self._candidate.current().ask(
            "controlled shutdown", lambda machine: machine.shut_down(request.broker_id, request.broker_epoch)
        )
        return {
            "error_code": ErrorCode.none,
            "remaining_partitions": [
                {"topic_name": partition.topic, "partition_index": partition.partition} for partition in remaining
            ],
        }


async def _by_topic(results: Mapping[TopicPartition, T]) -> list[tuple[str, list[tuple[int, T]]]]:
    """Group the results of partitions by topic, sorted."""
    by_topic: dict[str, list[tuple[int, T]]] = {}
    pace = Pace()
    for some in chunks(results.items(), _AT_ONCE):
        for (name, index), result in some:
            by_topic.setdefault(name, []).append((index, result))
        await pace.rest()
    return [(name, sorted(by_topic[name], key=itemgetter(0))) for name in sorted(by_topic)]


def _existence(partitions: Iterable[TopicPartition], machine: ControllerMachine) -> tuple[list[bool], Iterable[Effect]]:
    return [machine.context.exists(partition) for partition in partitions], ()


def _failed(index_name: str, result: tuple[int, KafkaError | None]) -> Fields:
    index, error = result
    return {
        index_name: index,
        "error_code": ErrorCode.none if error is None else error.code,
        "error_message": None if error is None else error.message,
    }


def _proposal(partition: TopicPartition, proposed: Any, version: int) -> Proposal:
    if version >= _WITH_EPOCHS:
        members = [(member.broker_id, member.broker_epoch) for member in proposed.new_isr_with_epochs]
    else:
        members = [(broker, UNKNOWN_EPOCH) for broker in proposed.new_isr]
    return Proposal(partition, proposed.leader_epoch, proposed.partition_epoch, members, proposed.leader_recovery_state)


def _altered(topic: Any, name: str | None, answers: Mapping[TopicPartition, LeaderState | ErrorCode]) -> dict[str, Any]:
    """Return the reply for the partitions of a topic; `name` is None if no topic has this id."""
    partitions = []
    for proposed in topic.partitions:
        index = proposed.partition_index
        answer = ErrorCode.unknown_topic_id if name is None else answers[TopicPartition(name, index)]
        if isinstance(answer, ErrorCode):
            fields: dict[str, Any] = {
                "error_code": answer,
                "leader_id": 0,
                "leader_epoch": 0,
                "isr": (),
                "leader_recovery_state": 0,
                "partition_epoch": 0,
            }
        else:
            fields = {
                "error_code": ErrorCode.none,
                "leader_id": answer.leader,
                "leader_epoch": answer.leader_epoch,
                "isr": answer.isr,
                "leader_recovery_state": answer.recovery,
                "partition_epoch": answer.version,
            }
        partitions.append({"partition_index": index, **fields})
    return {"topic_id": topic.topic_id, "partitions": partitions}
