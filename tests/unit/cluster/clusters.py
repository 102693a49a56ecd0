"""Small clusters for metadata tests."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random

from headrace.broker.live_settings import LiveSettings
from headrace.cluster.commands import Command, LeaderAndIsr, StopReplica
from headrace.cluster.controller.office import Office
from headrace.cluster.failures import StoreFailures
from headrace.cluster.image import BROKER_CONFIG, BrokerImage, ConfigResource, Endpoint, MetadataImage, TopicImage
from headrace.cluster.metadata_cache import MetadataCache
from headrace.cluster.producer_id_blocks import ProducerIdBlocks
from headrace.cluster.store import MetadataStore, Operation
from headrace.cluster.topic_admin import TopicAdmin
from headrace.config import BrokerConfig
from headrace.types import PartitionState, TopicPartition

NOW_MS = 1_700_000_000_000


def broker(broker_id: int = 0, rack: str | None = None) -> BrokerImage:
    return BrokerImage(broker_id, (Endpoint("PLAINTEXT", f"host{broker_id}", 9092, "PLAINTEXT"),), rack)


def cluster_of(*ids: int) -> MetadataImage:
    return MetadataImage(controller_epoch=1).with_brokers(broker(item) for item in ids)


async def _no_logs(_: Sequence[PartitionState]) -> None:
    """Create no logs."""


class Cluster:
    """A broker without logs that records its controller's commands."""

    def __init__(self, store: MetadataStore, config: BrokerConfig | None = None) -> None:
        self.config = config or BrokerConfig()
        self.cache = MetadataCache()
        self.led: list[PartitionState] = []
        self.stopped: list[TopicPartition] = []
        self.deleted: list[TopicImage] = []
        self.create_logs: Callable[[Sequence[PartitionState]], Awaitable[None]] = _no_logs
        self.settings = LiveSettings(self.config, self.cache)
        self.cache.attach(self)
        failures = StoreFailures()
        self.office = Office(store, self.config.node_id, failures, deliver=self._deliver, now_ms=lambda: NOW_MS)
        self.admin = TopicAdmin(store, self.cache, self.office, self.config, failures, random=Random(1))
        self.producer_ids = ProducerIdBlocks(store, self.config.node_id, failures)

    @property
    def image(self) -> MetadataImage:
        return self.cache.image

    async def start(self, cluster_id: str | None = None, founding: Sequence[Operation] = ()) -> None:
        await self.office.take(cluster_id, founding)
        self.cache.begin(self.office.cluster_id, self.office.founded.configs)
        self.settings.apply_to_broker()
        await self.office.register(broker())

    async def close(self) -> None:
        await self.office.close()

    def on_topics_changed(self, topics: Iterable[TopicImage]) -> None:
        """Ignore the change: tests read the cache."""

    async def on_topics_deleted(self, topics: Sequence[TopicImage]) -> None:
        self.deleted += topics

    async def on_configs_changed(self, resources: Sequence[ConfigResource]) -> None:
        if any(resource.kind == BROKER_CONFIG for resource in resources):
            self.settings.apply_to_broker()

    async def _deliver(self, broker_id: int, command: Command) -> None:
        if isinstance(command, LeaderAndIsr):
            await self.create_logs(command.partitions)
            self.led += command.partitions
        elif isinstance(command, StopReplica):
            self.stopped += [stopped.topic_partition for stopped in command.replicas]
        else:
            await self.cache.apply(command)


async def started(store: MetadataStore, config: BrokerConfig | None = None) -> Cluster:
    cluster = Cluster(store, config)
    await cluster.start()
    return cluster
