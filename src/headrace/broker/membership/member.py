"""A broker as a member of a cluster with ZooKeeper: session, registration, dynamic settings, controller election."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from uuid import UUID

from headrace.broker import addresses
from headrace.broker.addresses import Endpoint
from headrace.broker.apis.controller import ControllerApis
from headrace.broker.apis.controls import ControlApis
from headrace.broker.apis.topics import TopicApis
from headrace.broker.commands import Commands
from headrace.broker.membership.controller import Controller
from headrace.broker.membership.following import MemberFetchers
from headrace.broker.membership.leading import MemberLeaders
from headrace.broker.membership.transactions import OtherBrokers
from headrace.client.link import Link
from headrace.clock import now_ms
from headrace.cluster import znodes
from headrace.cluster.failures import StoreFailures
from headrace.cluster.features import WITH_ZOOKEEPER, Features
from headrace.cluster.image import BROKER_CONFIG, NO_LEADER, TOPIC_CONFIG
from headrace.cluster.membership.configs import Configs, ConfigWatch
from headrace.cluster.membership.founding import found_cluster
from headrace.cluster.membership.inter_broker import inter_broker_versions
from headrace.cluster.membership.member_admin import MemberAdmin
from headrace.cluster.membership.refusals import check_cluster
from headrace.cluster.membership.registration import register
from headrace.cluster.membership.watchdog import Watchdog
from headrace.cluster.metadata_cache import MetadataCache
from headrace.cluster.offices.candidate import Candidate
from headrace.cluster.offices.term import TermSettings
from headrace.cluster.offices.topic_admin import ClusterTopicAdmin
from headrace.cluster.producer_id_blocks import ProducerIdBlocks
from headrace.cluster.store import StoreError, StoreUnavailableError
from headrace.cluster.stores.zookeeper import SessionChange, ZooKeeperStore
from headrace.cluster.topic_names import TRANSACTION_STATE
from headrace.config import BrokerConfig, ConfigError, Listener, topic_value
from headrace.coordinator.runtime.partitioner import partition_for
from headrace.errors import ErrorCode, KafkaError
from headrace.monitoring.controller import controller
from headrace.monitoring.http import HttpServer
from headrace.replication.replica_manager import ReplicaManager
from headrace.server.context import RequestContext
from headrace.types import TopicPartition

_PATIENCE_S = 5.0
"""Time to wait, after the session timeout, for the registration from before a crash to expire."""
_RETRY_S = 1.0

log = logging.getLogger(__name__)


class Member:
    """This broker's membership in a cluster: keeps its registration and settings up to date.

    Call `connect`, then `load`, and `join` just before the broker serves; to stop, `leave`, then `close`.
    """

    def __init__(
        self, config: BrokerConfig, zookeeper: str, cache: MetadataCache, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._config = config
        self._cache = cache
        self._loop = loop
        self._listener = inter_broker_listener(config)
        inter_broker_versions(config.inter_broker_protocol_version)  # raises ConfigError before the broker connects
        self._store = ZooKeeperStore(zookeeper, session_timeout_ms=config.zookeeper_session_timeout_ms, loop=loop)
        failures = StoreFailures()
        self.admin = MemberAdmin(self._store, lambda: cache.image, config, failures)
        self.features = Features(self._store, failures, WITH_ZOOKEEPER)
        self.controller = Controller(config, self.controller_address, lambda: self.broker_epoch, loop)
        self.candidate = Candidate(
            self._store,
            config.node_id,
            TermSettings(
                self._listener,
                config.controller_socket_timeout_ms / 1000,
                self._may_be_unclean,
                config.delete_topic_enable,
                self._balance,
            ),
            now_ms=now_ms,
            loop=loop,
        )
        self._failures = failures
        self.others = OtherBrokers(self._leader_of, self._coordinator_of, self._link_to, loop)
        self.broker_epoch = -1
        """The czxid of the registration; -1 before it."""
        self._configs = ConfigWatch(
            self._store, config.node_id, apply=self._apply_configs, changed=self._wake, now_ms=now_ms
        )
        self._listeners: Sequence[Listener] = ()
        self._news = asyncio.Event()
        self._is_connected = True
        self._must_rejoin = False
        self._has_offline_partitions = False
        self._session = 0
        self._following: asyncio.Task[None] | None = None
        self._fetchers: MemberFetchers | None = None
        timeout_s = config.zookeeper_session_timeout_ms / 1000
        self._watchdog = Watchdog(loop, timeout_s=timeout_s)
        self._failed: asyncio.Event | None = None

    async def connect(self) -> str:
        """Begin a session, and return the cluster id; create the cluster if ZooKeeper has none.

        Raises StoreError, and KafkaError if this broker cannot join the cluster.
        """
        config = self._config
        timeout_ms = config.zookeeper_connection_timeout_ms or config.zookeeper_session_timeout_ms
        log.info("Connecting to ZooKeeper %s", self._store.address)
        await self._store.connect(timeout_ms / 1000)
        self._store.on_change = self._session_changed
        await found_cluster(self._store)
        return await check_cluster(self._store, broker_id=config.node_id, listener=self._listener)

    async def load(self) -> Configs:
        """Return all settings of topics and of this broker."""
        return await self._configs.load()

    async def join(self, listeners: Sequence[Listener], failed: asyncio.Event) -> None:
        """Register with the bound ports. The controller then connects and sends commands.

        `failed` is set if another broker takes the id after the session has expired. Raises
        KafkaError(duplicate_broker_registration).
        """
        self._listeners = listeners
        self._failed = failed
        # Not earlier: before this broker registers, opening many logs may block the event loop beyond the timeout.
        self._watchdog.start()
        topics, deleting = await self._store.children(znodes.TOPICS), await self._store.children(znodes.DELETIONS)
        self._cache.await_topics({*topics} - {*deleting})
        await self._register()
        self.candidate.stand()
        self._following = self._loop.create_task(self._follow())

    def leaders(self, replicas: ReplicaManager) -> MemberLeaders:
        """Create the object that does this broker's work as a leader: ISR changes, and checks for lagging followers."""
        return MemberLeaders(
            self._config,
            self._cache,
            replicas,
            address=self.controller_address,
            broker_epoch=lambda: self.broker_epoch,
            loop=self._loop,
        )

    def fetchers(self, executor: Executor) -> MemberFetchers:
        """Return the fetchers of the partitions that this broker follows. `executor` flushes logs."""
        self._fetchers = MemberFetchers(
            self._config,
            executor,
            link_to=self._fetching_link,
            address_of=self.address_of,
            broker_epoch=lambda: self.broker_epoch,
        )
        return self._fetchers

    def apis(self, commands: Commands) -> Sequence[ControlApis | ControllerApis]:
        """Return the handlers of requests from the controller, and of requests to it."""
        config, cache = self._config, self._cache
        controls = ControlApis(commands, cache, broker_epoch=lambda: self.broker_epoch, read_configs=self._read_configs)
        admin = ClusterTopicAdmin(self._store, cache, self.candidate, self.admin, config, self._failures)
        blocks = ProducerIdBlocks(self._store, config.node_id, self._failures)
        return (
            controls,
            ControllerApis(self.candidate, cache, TopicApis(cache, admin, config), admin, blocks),
        )

    def add_metrics(self, http: HttpServer) -> None:
        """Add the metrics of the controller."""
        http.add_metrics(partial(controller, self.candidate))

    def locate(self, context: RequestContext, topic: str, key: str) -> Endpoint:
        """Return the client-facing address of the coordinator for `key`, which leads the key's partition of `topic`.

        Raises KafkaError(coordinator_not_available).
        """
        image = self._cache.image
        found = image.topics.get(topic)
        if found is not None:
            leader = found.partitions[partition_for(key, len(found.partitions))].leader
            if leader == self._config.node_id:
                return addresses.endpoint_for(self._config, context)
            broker = image.brokers.get(leader)
            endpoint = None if broker is None else broker.endpoint(context.listener)
            if endpoint is not None:
                return Endpoint(leader, endpoint.host, endpoint.port)
        raise KafkaError(ErrorCode.coordinator_not_available, "The coordinator is not available.")

    async def _read_configs(self, topics: Iterable[tuple[str, UUID | None]]) -> None:
        """Read the settings of new topics, and of topics that were deleted and created again unnoticed.

        Raises KafkaError(broker_not_available) if this broker is stopping.
        """
        known = self._cache.image.topics
        unknown = {
            name for name, topic_id in topics if name not in known or topic_id not in (None, known[name].topic_id)
        }
        if unknown:
            try:
                configs = await self._configs.read_topics(unknown)
            except StoreUnavailableError as error:  # the store waits for ZooKeeper until it is closed
                raise KafkaError(ErrorCode.broker_not_available, "This broker is stopping.") from error
            self._cache.note_configs(configs)

    def note_offline_partitions(self) -> None:
        """Notify the controller, which then sends LeaderAndIsr to find out which partitions are offline (KIP-112)."""
        self._has_offline_partitions = True
        self._wake()

    def controller_address(self) -> tuple[str, int] | None:
        """Return the controller's address on the inter-broker listener; None if it is not known."""
        return self.address_of(self._cache.image.controller_id)

    def address_of(self, broker_id: int) -> tuple[str, int] | None:
        """Return a live broker's address on the inter-broker listener; None if it is not alive."""
        broker = self._cache.image.brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoint(self._listener)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    def _leader_of(self, partition: TopicPartition) -> int:
        """Return the leader of a partition; -1 if it has none or this broker leads it."""
        topic = self._cache.image.topics.get(partition.topic)
        if topic is None or partition.partition >= len(topic.partitions):
            return NO_LEADER
        leader = topic.partitions[partition.partition].leader
        return NO_LEADER if leader == self._config.node_id else leader

    def _coordinator_of(self, transactional_id: str) -> int | None:
        """Return the coordinator of a transactional id: a broker, None for this one, or -1 if there is none."""
        topic = self._cache.image.topics.get(TRANSACTION_STATE)
        if topic is None:
            return NO_LEADER
        leader = topic.partitions[partition_for(transactional_id, len(topic.partitions))].leader
        return None if leader == self._config.node_id else leader

    def _link_to(self, broker_id: int, api_versions: bool) -> Link:
        client_id = str(self._config.node_id)
        return Link(lambda: self.address_of(broker_id), client_id=client_id, loop=self._loop, api_versions=api_versions)

    def _fetching_link(self, leader: int, client_id: str) -> Link:
        timeout_s = self._config.replica_socket_timeout_ms / 1000
        return Link(
            lambda: self.address_of(leader),
            client_id=client_id,
            loop=self._loop,
            api_versions=False,
            timeout_s=timeout_s,
        )

    async def leave(self) -> None:
        """Ask the controller to move leadership to other brokers, unless this is disabled or ZooKeeper unreachable.

        Then stop the watchdog: the broker serves nobody, and may block the event loop while it closes its logs.
        """
        try:
            if self._config.controlled_shutdown_enable and self.broker_epoch >= 0 and self._is_connected:
                if self._fetchers is not None:
                    self._fetchers.is_leaving = True
                await self.controller.shut_down()
        finally:
            self._watchdog.stop()

    async def close(self) -> None:
        """End the session, which deletes the registration."""
        self._watchdog.stop()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await self.candidate.close()
        self.controller.close()
        await self.others.close()
        await self._store.close()

    async def _apply_configs(self, configs: Configs) -> None:
        await self._cache.apply_configs(configs)
        term = self.candidate.term
        if term is None:
            return
        for resource in configs:
            if resource.kind == TOPIC_CONFIG and self._may_be_unclean(resource.name):
                term.note_unclean(resource.name)
            elif resource.kind == BROKER_CONFIG and self._config.unclean_leader_election_enable:
                term.note_unclean(None)

    def _may_be_unclean(self, topic: str) -> bool:
        return topic_value(self._config, self._cache.topic_config(topic), "unclean.leader.election.enable") is True

    def _balance(self) -> tuple[float, int] | None:
        config = self._config
        if not config.auto_leader_rebalance_enable:
            return None
        return config.leader_imbalance_check_interval_seconds, config.leader_imbalance_per_broker_percentage

    # The session

    def _session_changed(self, change: SessionChange) -> None:
        address = self._store.address
        if change is SessionChange.CONNECTED:
            if not self._is_connected:
                log.info("Reconnected to ZooKeeper %s", address)
            self._is_connected = self._must_rejoin = True
            self._wake()
        elif change is SessionChange.LOST:
            log.warning(
                "The session with ZooKeeper %s has expired: registering again; until then other brokers treat this one"
                " as dead",
                address,
            )
        elif self._is_connected:
            self._is_connected = False
            log.warning(
                "Lost the connection to ZooKeeper %s; this broker keeps serving its partitions while it reconnects",
                address,
            )

    def _wake(self) -> None:
        self._news.set()

    async def _follow(self) -> None:
        """Register again after the session has expired, apply changed settings, and report offline partitions."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                if self._must_rejoin:
                    self._must_rejoin = False
                    await self._rejoin()
                else:
                    await self._configs.follow()
                if self._has_offline_partitions:
                    await self._report_offline_partitions()
            except KafkaError as error:
                log.critical("%s The broker stops.", error)
                if self._failed is not None:
                    self._failed.set()
                return
            except Exception as error:
                if self._store.is_closed:
                    return
                # Without a retry, this broker might never register again, and other brokers would treat it as dead.
                if isinstance(error, StoreError):
                    log.error("Cannot follow changes in ZooKeeper; trying again in %g s: %s", _RETRY_S, error)
                else:
                    log.exception("Following ZooKeeper failed; trying again (this is a bug, please report it)")
                await asyncio.sleep(_RETRY_S)
                self._must_rejoin = True
                self._wake()

    async def _report_offline_partitions(self) -> None:
        # Before `create`: the controller may ask while it runs, and then misses partitions that go offline after that.
        self._has_offline_partitions = False
        notification = znodes.encode_log_dir_failure(self._config.node_id)
        try:
            await self._store.create(znodes.LOG_DIR_EVENT, notification, sequential=True)
        except Exception:
            self._has_offline_partitions = True
            raise

    async def _rejoin(self) -> None:
        if self._store.session != self._session:
            await self.candidate.expire()
            await self._register()
        self.candidate.stand()
        known = self._cache.image.configs
        configs = await self._configs.load(again=True)
        changed = {resource: values for resource, values in configs.items() if known.get(resource, {}) != values}
        if changed:
            await self._apply_configs(changed)

    async def _register(self) -> None:
        config = self._config
        session = self._store.session
        self.broker_epoch = await register(
            self._store,
            addresses.broker_image(config, self._listeners),
            now_ms=now_ms(),
            patience_s=config.zookeeper_session_timeout_ms / 1000 + _PATIENCE_S,
        )
        self._session = session
        log.info("Registered as broker %d with broker epoch %d", config.node_id, self.broker_epoch)


def inter_broker_listener(config: BrokerConfig) -> str:
    """Return the name of the inter-broker listener. Raises ConfigError if other brokers cannot connect to it."""
    name = (config.inter_broker_listener_name or config.security_inter_broker_protocol).upper()
    advertised = config.parsed_advertised_listeners
    listeners = advertised or config.parsed_listeners
    for listener in listeners:
        if listener.host in ("", "0.0.0.0", "::"):
            raise ConfigError("listeners", str(listener), "other brokers cannot reach it: set advertised.listeners")
    if all(listener.name != name for listener in listeners):
        setting = "advertised.listeners" if advertised else "listeners"
        raise ConfigError(setting, ",".join(map(str, listeners)), f"must contain {name}, the inter-broker listener")
    return name
