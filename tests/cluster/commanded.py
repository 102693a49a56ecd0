"""A broker that a Kafka controller commands: a registration in ZooKeeper, and the APIs that leaders need."""

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from kazoo.client import KazooClient
from kio.schema.errors import ErrorCode

from headrace.broker.apis.fetch import FetchApi
from headrace.broker.apis.partition_offsets import PartitionOffsetsApi
from headrace.broker.apis.produce import ProduceApi
from headrace.client.link import Link
from headrace.config import BrokerConfig
from headrace.replication.leading.isr_reports import IsrReports
from headrace.replication.leading.peers import Peers
from headrace.replication.partition import Partition
from headrace.replication.purgatory import Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.server.accept import Server
from headrace.server.context import Handler, RequestContext
from headrace.server.dispatch import Dispatcher
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.encoder import Fields

BROKER_ID: Final = 4


class Unverified:
    """No transactions."""

    def verify(self, _: object) -> None:
        return None

    async def verify_many(self, _: object) -> None:
        return None


class CommandedBroker:
    """Broker 4, with the logs in `directory`. It leads as it is told, and follows nobody."""

    def __init__(
        self, directory: Path, zookeeper: str, *, max_lag_ms: int = 1500, log_config: Mapping[str, Any] | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        self.max_lag_ms = max_lag_ms
        self.alive: dict[int, tuple[str, int]] = {}
        self.controller: tuple[str, int] | None = None
        self.topics: dict[UUID, str] = {}
        self.commands: list[Any] = []
        self._zookeeper = KazooClient(zookeeper)
        self._loop = loop
        topic_config = LogConfig(**(log_config or {}))
        self.purgatory = Purgatory(loop)
        self.directory = directory
        directory.mkdir()
        self.replicas = ReplicaManager(
            LogDirs.open([directory], broker_id=BROKER_ID), lambda _: topic_config, self.purgatory
        )
        config = BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0", "broker.id": str(BROKER_ID)})
        dispatcher = Dispatcher()
        self._server = Server(config, dispatcher, loop)
        self.fetch = FetchApi(
            self.replicas, self._name_of, loop=loop, max_sessions=10, max_bytes=50 << 20, turns=self._server.turns
        )
        unverified: Any = Unverified()
        produce = ProduceApi(self.replicas, self._name_of, self.purgatory, unverified)
        controls: dict[ApiKey, Handler] = {
            ApiKey.LEADER_AND_ISR: self._leader_and_isr,
            ApiKey.UPDATE_METADATA: self._update_metadata,
            ApiKey.STOP_REPLICA: self._stop_replica,
        }
        dispatcher.add_routes(self.fetch.routes())
        dispatcher.add_routes(PartitionOffsetsApi(self.replicas, lambda _: False).routes())
        dispatcher.add_routes(controls)
        dispatcher.add_produce(produce.produce, produce.produce_run, produce.produce_many)
        self._link = Link(lambda: self.controller, client_id="4", loop=loop, api_versions=True)
        self._reports = IsrReports(self._link, loop=loop, broker_id=BROKER_ID, broker_epoch=lambda: self.epoch)
        self.peers = Peers(
            BROKER_ID,
            is_alive=self.alive.__contains__,
            max_lag_ms=lambda: self.max_lag_ms,
            now_ms=lambda: time.monotonic_ns() // 1_000_000,
            alter_isr=self._reports,
        )
        self._checks = loop.create_task(self._check_followers())

    def _name_of(self, topic_id: UUID | None) -> str | None:
        return None if topic_id is None else self.topics.get(topic_id)

    async def join(self) -> None:
        """Listen, and register."""
        [listener] = self._server.bind()
        self._server.start()
        self.bootstrap = f"127.0.0.1:{listener.port}"
        registration = {
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
            "endpoints": [f"PLAINTEXT://{self.bootstrap}"],
            "jmx_port": -1,
            "features": {},
            "host": "127.0.0.1",
            "timestamp": str(int(time.time() * 1000)),
            "port": listener.port,
            "version": 5,
        }
        await asyncio.to_thread(self._zookeeper.start, 20)
        await asyncio.to_thread(
            self._zookeeper.create, f"/brokers/ids/{BROKER_ID}", json.dumps(registration).encode(), ephemeral=True
        )
        _, stat = await asyncio.to_thread(self._zookeeper.get, f"/brokers/ids/{BROKER_ID}")
        self.epoch = stat.czxid

    async def close(self) -> None:
        self._checks.cancel()
        self._link.close()
        await self._reports.close()
        self._server.close()
        self.purgatory.close()
        await asyncio.to_thread(self._zookeeper.stop)
        self._zookeeper.close()
        self.replicas.close()

    async def state_of(self, topic: str, partition: int = 0) -> dict[str, Any]:
        """Return the partition's state in ZooKeeper."""
        data, _ = await asyncio.to_thread(self._zookeeper.get, f"/brokers/topics/{topic}/partitions/{partition}/state")
        state: dict[str, Any] = json.loads(data)
        return state

    def partition(self, topic: str) -> Partition:
        return self.replicas.get(topic, 0)

    async def _check_followers(self) -> None:
        while True:
            await asyncio.sleep(self.max_lag_ms / 2000)
            for partition in self.replicas.partitions():
                if partition.followers is not None:
                    partition.followers.check()

    # Commands

    def _leader_and_isr(self, _: RequestContext, request: Any) -> Fields:
        self.commands.append(request)
        for topic in request.topic_states:
            self.topics[topic.topic_id] = topic.topic_name
            for state in topic.partition_states:
                if state.leader != BROKER_ID:
                    continue
                partition = self.replicas.become_leader(
                    TopicPartition(topic.topic_name, state.partition_index), topic.topic_id, state.leader_epoch
                )
                partition.lead(state, self.peers)
        return {"error_code": ErrorCode.none, "topics": []}

    def _update_metadata(self, _: RequestContext, request: Any) -> Fields:
        brokers = {broker.id: (broker.endpoints[0].host, broker.endpoints[0].port) for broker in request.live_brokers}
        self.alive.clear()
        self.alive.update(brokers)
        self.controller = brokers.get(request.controller_id)
        return {"error_code": ErrorCode.none}

    def _stop_replica(self, _: RequestContext, request: Any) -> Fields:
        self.commands.append(request)
        return {"error_code": ErrorCode.none, "partition_errors": []}
