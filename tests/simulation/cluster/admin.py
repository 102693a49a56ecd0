"""An operator of the simulated cluster, with requests to brokers and nodes in ZooKeeper."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Protocol

from headrace.client.link import LinkError
from headrace.cluster.image import NO_LEADER
from headrace.errors import ErrorCode
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey, request_encoder, response_reader
from tests.simulation.cluster.clients import Links
from tests.simulation.cluster.loop import Process, ProcessLoop

_VERSIONS: Final = {
    ApiKey.CREATE_TOPICS: 5,
    ApiKey.DELETE_TOPICS: 5,
    ApiKey.CREATE_PARTITIONS: 2,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
    ApiKey.ELECT_LEADERS: 2,
    ApiKey.DELETE_RECORDS: 2,
}
_TIMEOUT_MS: Final = 1000
_PATIENCE_S: Final = 4.0
_BACKOFF_S: Final = 0.2


class Cluster(Protocol):
    """The cluster as an operator sees it."""

    def leader_of(self, name: TopicPartition) -> int:
        """Return the leader according to some live broker."""

    def known_controller(self) -> int:
        """Return the controller according to some live broker; -1 if none is known."""

    def note(self, text: str) -> None: ...


class Admin:
    """Repeats requests until the controller answers them, for a while."""

    def __init__(self, cluster: Cluster, loop: ProcessLoop) -> None:
        self.process = Process("admin")
        self._cluster = cluster
        self._loop = loop

    async def create_topic(self, topic: str, assignments: Sequence[Sequence[int]]) -> None:
        wanted = {
            "name": topic,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [
                {"partition_index": index, "broker_ids": list(brokers)} for index, brokers in enumerate(assignments)
            ],
            "configs": [],
        }
        await self._ask(ApiKey.CREATE_TOPICS, {"topics": [wanted], "timeout": _TIMEOUT_MS, "validate_only": False})

    async def delete_topic(self, topic: str) -> None:
        await self._ask(ApiKey.DELETE_TOPICS, {"topic_names": [topic], "timeout": _TIMEOUT_MS})

    async def add_partition(self, topic: str, count: int, brokers: Sequence[int]) -> None:
        wanted = {"name": topic, "count": count, "assignments": [{"broker_ids": list(brokers)}]}
        fields = {"topics": [wanted], "timeout": _TIMEOUT_MS, "validate_only": False}
        await self._ask(ApiKey.CREATE_PARTITIONS, fields)

    async def reassign(self, name: TopicPartition, target: Sequence[int] | None, controller: int | None = None) -> None:
        """Start a reassignment; cancel it with None. Ask the current controller, or a broker that was controller."""
        partition = {"partition_index": name.partition, "replicas": None if target is None else list(target)}
        topics = [{"name": name.topic, "partitions": [partition]}]
        fields = {"timeout": _TIMEOUT_MS, "topics": topics}
        if controller is None:
            await self._ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, fields)
        else:
            await self._try(controller, ApiKey.ALTER_PARTITION_REASSIGNMENTS, fields)

    async def elect(self, name: TopicPartition | None, *, unclean: bool) -> None:
        """Elect the preferred leader, or any, of one partition or all."""
        topics = None if name is None else [{"topic": name.topic, "partitions": [name.partition]}]
        fields = {"election_type": int(unclean), "topic_partitions": topics, "timeout": _TIMEOUT_MS}
        await self._ask(ApiKey.ELECT_LEADERS, fields)

    async def delete_records(self, name: TopicPartition, offset: int) -> None:
        leader = self._cluster.leader_of(name)
        if leader == NO_LEADER:
            return
        partitions = [{"partition_index": name.partition, "offset": offset}]
        fields = {"topics": [{"name": name.topic, "partitions": partitions}], "timeout": _TIMEOUT_MS}
        await self._try(leader, ApiKey.DELETE_RECORDS, fields)

    async def _try(self, broker: int, api_key: ApiKey, fields: dict[str, Any]) -> None:
        """Send a request to a broker once."""
        try:
            answer: object = await self._send(broker, api_key, fields)
        except LinkError as error:
            answer = error
        self._cluster.note(f"admin: {api_key.name} {answer}")

    async def _ask(self, api_key: ApiKey, fields: dict[str, Any]) -> None:
        """Send a request to the controller."""
        deadline = self._loop.time() + _PATIENCE_S
        answer: object = "no controller"
        while self._loop.time() < deadline:
            controller = self._cluster.known_controller()
            if controller >= 0:
                try:
                    answer = await self._send(controller, api_key, fields)
                except LinkError as error:
                    answer = error
                else:
                    if ErrorCode.not_controller.name not in repr(answer):
                        break
            await asyncio.sleep(_BACKOFF_S)
        self._cluster.note(f"admin: {api_key.name} {answer}")

    async def _send(self, broker: int, api_key: ApiKey, fields: dict[str, Any]) -> Any:
        body = bytearray()
        version = _VERSIONS[api_key]
        request_encoder(api_key, version)(body, fields)
        reply = await Links(self._loop, "admin").to(broker).exchange(api_key, version, body)
        return response_reader(api_key, version)(bytes(reply), 0)[0]
