"""The group APIs on an in-memory coordinator."""

import asyncio
import re
import uuid
from typing import Any
from uuid import UUID

from headrace.broker.addresses import Endpoint
from headrace.broker.apis.committed_offsets import OffsetApis
from headrace.broker.apis.group_admin import GroupAdminApis
from headrace.broker.apis.groups import GroupApis
from headrace.coordinator.group_coordinator import GroupCoordinator
from headrace.coordinator.groups.settings import GroupSettings
from headrace.errors import KafkaError
from headrace.server.context import RequestContext
from headrace.wire.apis import ApiKey
from tests.unit.broker.asking import ask
from tests.unit.coordinator.driver import subscription
from tests.unit.coordinator.fake_topics import FakeTopics
from tests.unit.coordinator.memory_log import MemoryLog

TOPIC_ID = uuid.UUID(int=7)


class GroupWorld:
    """Topic `t` has three partitions; every group is in one shard."""

    def __init__(self) -> None:
        settings = GroupSettings(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=0)
        self.coordinator = GroupCoordinator(settings, asyncio.get_running_loop(), FakeTopics(t=4))
        self.log = MemoryLog()
        self.coordinator.elected(0, self.log)
        self.created = 0
        self.creation_error: KafkaError | None = None
        self.topics: dict[str, tuple[UUID, int]] = {"t": (TOPIC_ID, 3)}
        self.routes = {
            **GroupApis(self.coordinator, self._endpoint, self._create_offsets_topic, _do_nothing).routes(),
            **GroupAdminApis(self.coordinator).routes(),
            **OffsetApis(self.coordinator, self).routes(),
        }

    @property
    def version(self) -> int:
        return 0

    def matching(self, regex: str) -> tuple[str, ...] | None:
        return tuple(sorted(name for name in self.topics if re.fullmatch(regex, name)))

    def describe(self, topic: str) -> tuple[bytes, int] | None:
        return (self.topics[topic][0].bytes, self.topics[topic][1]) if topic in self.topics else None

    def name_of(self, topic_id: bytes) -> str | None:
        return next((name for name, (known, _) in self.topics.items() if known.bytes == topic_id), None)

    def _endpoint(self, context: RequestContext) -> Endpoint:
        return Endpoint(3, *context.local_address)

    async def _create_offsets_topic(self) -> None:
        if self.creation_error is not None:
            raise self.creation_error
        self.created += 1

    async def ask(self, api_key: ApiKey, api_version: int, **fields: Any) -> Any:
        return await ask(self.routes, api_key, api_version, fields)

    async def join(self, version: int = 9, member_id: str = "", group_id: str = "g", **fields: Any) -> Any:
        return await self.ask(
            ApiKey.JOIN_GROUP,
            version,
            **{
                "group_id": group_id,
                "session_timeout": 10_000,
                "rebalance_timeout": 60_000,
                "member_id": member_id,
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": subscription("t")}],
                "reason": "a test",
                **fields,
            },
        )

    async def sync(self, version: int, member_id: str, **fields: Any) -> Any:
        return await self.ask(
            ApiKey.SYNC_GROUP,
            version,
            **{
                "group_id": "g",
                "generation_id": 1,
                "member_id": member_id,
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocol_name": "range",
                "assignments": [{"member_id": member_id, "assignment": b"mine"}],
                **fields,
            },
        )

    async def member(self, **fields: Any) -> str:
        """Return the id of the only member of group `g`, in generation 1."""
        joined = await self.join(3, **fields)
        await self.sync(3, joined.member_id)
        member_id: str = joined.member_id
        return member_id

    async def heartbeat(self, version: int, member_id: str, **fields: Any) -> Any:
        request = {"group_id": "g", "generation_id": 1, "member_id": member_id, "group_instance_id": None}
        return (await self.ask(ApiKey.HEARTBEAT, version, **{**request, **fields})).error_code

    async def commit(self, version: int, *partitions: tuple[int, int, str | None], **fields: Any) -> Any:
        """Commit partitions given as (index, offset, metadata)."""
        named = [
            {
                "partition_index": index,
                "committed_offset": offset,
                "committed_leader_epoch": 4,
                "committed_metadata": metadata,
            }
            for index, offset, metadata in partitions
        ]
        request = {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "retention_time": -1,
            "topics": [{"name": "t", "topic_id": TOPIC_ID, "partitions": named}],
        }
        return await self.ask(ApiKey.OFFSET_COMMIT, version, **{**request, **fields})

    async def fetch(self, version: int, topics: Any = ..., group_id: str = "g", **fields: Any) -> Any:
        """Return the fetched offsets of one group, by default of partitions 0 and 1 of topic t."""
        if topics is ...:
            topics = [{"name": "t", "topic_id": TOPIC_ID, "partition_indexes": [0, 1]}]
        group = {"group_id": group_id, "topics": topics}
        if version >= 8:
            response = await self.ask(ApiKey.OFFSET_FETCH, version, groups=[group], **fields)
            return response.groups[0]
        return await self.ask(ApiKey.OFFSET_FETCH, version, **group, **fields)


async def _do_nothing() -> None:
    """The transaction topic exists."""
