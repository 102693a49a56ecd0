"""The settings of one broker, from all sources, as typed attributes.

The sources, in order of precedence: values set at run time for this broker, values set at run time for all brokers,
values given at start-up (file, environment and command line), and defaults (KIP-226).
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import dropwhile
from typing import Final, NamedTuple

from headrace.config.broker_settings import BROKER_SETTINGS, LISTENER_PREFIX, find_setting, known_keys
from headrace.config.definition import ConfigError, Value, combined, did_you_mean
from headrace.config.inapplicable import ZOOKEEPER_PROTECTION, why_idle, why_inapplicable
from headrace.config.listeners import (
    Listener,
    check_listeners,
    parse_http_listener,
    parse_listeners,
    parse_protocol_map,
)
from headrace.config.replication import LEADER_SELECTOR, RACK_AWARE_SELECTOR

# Sources of values, with their numbers in DescribeConfigs.
TOPIC_SOURCE: Final = 1
DYNAMIC_BROKER_SOURCE: Final = 2
DYNAMIC_DEFAULT_SOURCE: Final = 3
STATIC_SOURCE: Final = 4
DEFAULT_SOURCE: Final = 5


class Origin(NamedTuple):
    """A value of a setting: the name it was set under, its text, and the number of its source."""

    name: str
    text: str | None
    source: int


class BrokerConfig:
    """Typed attributes, one per setting: `config.num_partitions`.

    reconfigure() changes the attributes in place, so they always have the current value. `warnings` lists unknown keys
    and keys that have no effect.
    """

    # server
    node_id: int
    broker_id: int
    broker_rack: str | None
    headrace_adopt_partial: bool
    headrace_busy_poll_us: int
    headrace_unknown_settings: str
    metadata_log_dir: str | None
    listeners: tuple[str, ...]
    advertised_listeners: tuple[str, ...] | None
    listener_security_protocol_map: str
    inter_broker_listener_name: str | None
    socket_listen_backlog_size: int
    socket_receive_buffer_bytes: int
    socket_send_buffer_bytes: int
    socket_request_max_bytes: int
    queued_max_request_bytes: int
    queued_max_requests: int
    connections_max_idle_ms: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: str
    max_connection_creation_rate: int
    request_timeout_ms: int
    socket_connection_setup_timeout_ms: int
    socket_connection_setup_timeout_max_ms: int
    num_network_threads: int
    num_io_threads: int
    background_threads: int
    num_recovery_threads_per_data_dir: int
    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int
    max_request_partition_size_limit: int
    fetch_purgatory_purge_interval_requests: int
    producer_purgatory_purge_interval_requests: int
    delete_records_purgatory_purge_interval_requests: int
    auto_create_topics_enable: bool
    delete_topic_enable: bool
    num_partitions: int
    default_replication_factor: int
    min_insync_replicas: int
    unclean_leader_election_enable: bool
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    message_max_bytes: int
    headrace_http_listener: str | None
    metrics_num_samples: int
    metrics_sample_window_ms: int
    metric_reporters: tuple[str, ...]
    # log
    log_dirs: tuple[str, ...] | None
    log_dir: tuple[str, ...] | None
    cordoned_log_dirs: tuple[str, ...]
    log_dir_failure_timeout_ms: int
    headrace_disk_soft_free_bytes: int
    headrace_disk_soft_free_percent: float
    headrace_disk_hard_free_bytes: int
    headrace_disk_hard_free_percent: float
    log_segment_bytes: int
    log_roll_ms: int | None
    log_roll_hours: int
    log_roll_jitter_ms: int | None
    log_roll_jitter_hours: int
    log_segment_delete_delay_ms: int
    log_index_size_max_bytes: int
    log_index_interval_bytes: int
    log_preallocate: bool
    log_retention_ms: int | None
    log_retention_minutes: int | None
    log_retention_hours: int
    log_retention_bytes: int
    log_retention_check_interval_ms: int
    log_cleanup_policy: tuple[str, ...]
    log_local_retention_bytes: int
    log_local_retention_ms: int
    log_flush_interval_messages: int
    log_flush_interval_ms: int | None
    log_flush_scheduler_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_start_offset_checkpoint_interval_ms: int
    log_message_timestamp_type: str
    log_message_timestamp_before_max_ms: int
    log_message_timestamp_after_max_ms: int
    log_cleaner_enable: bool
    log_cleaner_threads: int
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_io_buffer_size: int
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_delete_retention_ms: int
    log_cleaner_min_cleanable_ratio: float
    log_cleaner_min_compaction_lag_ms: int
    log_cleaner_max_compaction_lag_ms: int
    # coordinator
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int
    offsets_topic_compression_codec: int
    offsets_retention_minutes: int
    offsets_retention_check_interval_ms: int
    headrace_group_history_interval_ms: int
    headrace_group_history_retention_hours: int
    headrace_group_history_max_bytes: int
    headrace_group_lag_assumed_reset: str
    offsets_commit_timeout_ms: int
    offsets_load_buffer_size: int
    offset_metadata_max_bytes: int
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_initial_rebalance_delay_ms: int
    group_max_size: int
    group_coordinator_rebalance_protocols: tuple[str, ...]
    group_consumer_session_timeout_ms: int
    group_consumer_min_session_timeout_ms: int
    group_consumer_max_session_timeout_ms: int
    group_consumer_heartbeat_interval_ms: int
    group_consumer_min_heartbeat_interval_ms: int
    group_consumer_max_heartbeat_interval_ms: int
    group_consumer_max_size: int
    group_consumer_assignors: tuple[str, ...]
    group_consumer_assignment_interval_ms: int
    group_consumer_min_assignment_interval_ms: int
    group_consumer_max_assignment_interval_ms: int
    group_consumer_migration_policy: str
    group_coordinator_append_linger_ms: int
    group_coordinator_cached_buffer_max_bytes: int
    group_coordinator_threads: int
    group_coordinator_background_threads: int
    producer_id_expiration_ms: int
    producer_id_expiration_check_interval_ms: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_min_isr: int
    transaction_state_log_segment_bytes: int
    transaction_state_log_load_buffer_size: int
    transaction_max_timeout_ms: int
    transactional_id_expiration_ms: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_partition_verification_enable: bool
    transaction_two_phase_commit_enable: bool
    add_partitions_to_txn_retry_backoff_ms: int
    add_partitions_to_txn_retry_backoff_max_ms: int
    # replication
    zookeeper_connect: str | None
    zookeeper_session_timeout_ms: int
    zookeeper_connection_timeout_ms: int | None
    inter_broker_protocol_version: str
    headrace_state_change_log: str | None
    num_replica_fetchers: int
    replica_fetch_min_bytes: int
    replica_fetch_max_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_wait_max_ms: int
    replica_fetch_backoff_ms: int
    replica_lag_time_max_ms: int
    replica_high_watermark_checkpoint_interval_ms: int
    replica_socket_timeout_ms: int
    replica_socket_receive_buffer_bytes: int
    replica_selector_class: str | None
    auto_leader_rebalance_enable: bool
    leader_imbalance_check_interval_seconds: int
    leader_imbalance_per_broker_percentage: int
    controlled_shutdown_enable: bool
    controlled_shutdown_max_retries: int
    controlled_shutdown_retry_backoff_ms: int
    controller_socket_timeout_ms: int
    leader_replication_throttled_rate: int
    follower_replication_throttled_rate: int
    replica_alter_log_dirs_io_max_bytes_per_second: int
    quota_window_num: int
    quota_window_size_seconds: int
    replication_quota_window_num: int
    replication_quota_window_size_seconds: int
    controller_quota_window_num: int
    controller_quota_window_size_seconds: int
    # security
    security_inter_broker_protocol: str
    sasl_mechanism_inter_broker_protocol: str
    authorizer_class_name: str
    super_users: str
    allow_everyone_if_no_acl_found: bool
    principal_builder_class: str
    sasl_enabled_mechanisms: tuple[str, ...]
    sasl_jaas_config: str | None
    sasl_client_callback_handler_class: str | None
    sasl_login_callback_handler_class: str | None
    sasl_server_callback_handler_class: str | None
    sasl_server_max_receive_size: int
    connections_max_reauth_ms: int
    connection_failed_authentication_delay_ms: int
    ssl_keystore_type: str
    ssl_keystore_location: str | None
    ssl_keystore_password: str | None
    ssl_keystore_key: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_key_password: str | None
    ssl_truststore_type: str
    ssl_truststore_location: str | None
    ssl_truststore_password: str | None
    ssl_truststore_certificates: str | None
    ssl_client_auth: str
    ssl_protocol: str
    ssl_enabled_protocols: tuple[str, ...]
    ssl_cipher_suites: tuple[str, ...]
    ssl_endpoint_identification_algorithm: str
    ssl_principal_mapping_rules: str
    ssl_allow_dn_changes: bool
    ssl_allow_san_changes: bool
    ssl_provider: str | None
    ssl_keymanager_algorithm: str
    ssl_trustmanager_algorithm: str
    ssl_secure_random_implementation: str | None
    ssl_engine_factory_class: str | None

    def __init__(
        self, properties: Mapping[str, str] | None = None, *, may_be_unknown: Collection[str] = frozenset()
    ) -> None:
        """Apply the settings given at start-up. Unknown keys in `may_be_unknown` only cause a warning.

        Raises ConfigError for all other unknown keys and for invalid values.
        """
        self._static: dict[str, str] = {}
        self._cluster: Mapping[str, str] = {}
        self._own: Mapping[str, str] = {}
        self.warnings: list[str] = []
        self._take(properties or {}, may_be_unknown)
        self._unify_broker_id()
        self._refresh()
        protocols = parse_protocol_map(self.listener_security_protocol_map)
        # Headrace does not need the controller listener of a KRaft broker.
        quorum = {name.strip().upper() for name in (properties or {}).get("controller.listener.names", "").split(",")}
        self.parsed_listeners = parse_listeners("listeners", self.listeners, leave_out=quorum)
        self.parsed_advertised_listeners: tuple[Listener, ...] | None = None
        if self.advertised_listeners is not None:
            self.parsed_advertised_listeners = parse_listeners(
                "advertised.listeners", self.advertised_listeners, leave_out=quorum
            )
        self.parsed_http_listener = parse_http_listener(self.headrace_http_listener)
        check_listeners(self.parsed_listeners, self.parsed_advertised_listeners or (), protocols)
        self._check_together()
        self._check_zookeeper(properties or {})
        self._warn_of_values()

    def _take(self, properties: Mapping[str, str], may_be_unknown: Collection[str]) -> None:
        errors: list[ConfigError] = []
        ignored: list[str] = []
        for key, text in properties.items():
            reason = why_inapplicable(key)
            setting = find_setting(key)
            if setting is not None:
                reason = why_idle(setting.name)
                try:
                    setting.parse(text)
                except ConfigError as error:
                    errors.append(error)
                self._static[key] = text
            elif reason is None and key in may_be_unknown:
                hint = did_you_mean(key, known_keys()).strip()
                ignored.append(f"{key} ({hint})" if hint else key)
            elif reason is None:
                errors.append(ConfigError(key, None, f"Unknown setting {key}.{did_you_mean(key, known_keys())}"))
            if reason is not None:
                self.warnings.append(f"{key} has no effect: {reason}")
        if errors:
            raise combined(errors)
        if ignored:
            self.warnings.append(
                "Ignored unknown settings (headrace.unknown.settings=refuse makes them errors): " + "; ".join(ignored)
            )

    def reconfigure(self, cluster: Mapping[str, str], own: Mapping[str, str]) -> set[str]:
        """Apply the run-time values for all brokers (`cluster`) and for this one (`own`). Return the changed settings.

        Values were checked when they were set. An invalid value, left by another version, is ignored.
        """
        before = {name: getattr(self, setting.attribute) for name, setting in BROKER_SETTINGS.items()}
        self._cluster, self._own = cluster, own
        self._refresh()
        return {name for name, value in before.items() if getattr(self, BROKER_SETTINGS[name].attribute) != value}

    def take_node_id(self, node_id: int) -> None:
        """Use the node id in the data directory, unless the settings contain one."""
        if "node.id" not in self._static and int(self._static.get("broker.id", -1)) < 0:
            self._static["node.id"] = str(node_id)
            self._refresh()

    def value(self, name: str) -> Value:
        """Return the current value of the setting `name`. Raises KeyError for an unknown name."""
        value: Value = getattr(self, BROKER_SETTINGS[name].attribute)
        return value

    def is_set(self, name: str) -> bool:
        """Return True if the setting was set explicitly, even to its default."""
        return name in self._own or name in self._cluster or name in self._static

    def origins(self, name: str) -> list[Origin]:
        """Return the values of `name` and its synonyms, in order of precedence.

        As in Kafka, synonyms that come before the first value of `name` itself are left out.
        """
        setting = find_setting(name)
        if setting is None:
            return []
        names = (name, *setting.synonyms)
        layers = (
            (self._own, DYNAMIC_BROKER_SOURCE),
            (self._cluster, DYNAMIC_DEFAULT_SOURCE),
            (self._static, STATIC_SOURCE),
        )
        found = [Origin(item, layer[item], source) for layer, source in layers for item in names if item in layer]
        for item in names:
            default = BROKER_SETTINGS[item].default if item != name else setting.default
            if default is not None:
                found.append(Origin(item, setting.format(default), DEFAULT_SOURCE))
        return list(dropwhile(lambda origin: origin.name != name, found))

    def listener_settings(self) -> Iterator[tuple[str, str]]:
        """Yield the key and text of every setting that begins with `listener.name.`."""
        for layer in (self._static, self._cluster, self._own):
            yield from ((key, text) for key, text in layer.items() if key.startswith(LISTENER_PREFIX))

    def security_protocol(self, listener: str) -> str:
        """Return the security protocol of a listener."""
        return parse_protocol_map(self.listener_security_protocol_map)[listener]

    def _unify_broker_id(self) -> None:
        node, broker = self._static.get("node.id"), self._static.get("broker.id")
        if node is not None and broker is not None and int(node) != int(broker):
            raise ConfigError("broker.id", broker, f"must equal node.id, which is {node}")

    def _refresh(self) -> None:
        for name, setting in BROKER_SETTINGS.items():
            value = setting.default
            for layer in (self._own, self._cluster, self._static):
                if name in layer:
                    try:
                        value = setting.parse(layer[name])
                    except ConfigError:
                        continue
                    break
            setattr(self, setting.attribute, value)
        if "broker.id" in self._static and "node.id" not in self._static and self.broker_id >= 0:
            self.node_id = self.broker_id
        self.broker_id = self.node_id

    def _check_zookeeper(self, properties: Mapping[str, str]) -> None:
        for name in ZOOKEEPER_PROTECTION if self.zookeeper_connect else ():
            if properties.get(name, "").strip().lower() == "true":
                raise ConfigError(
                    name,
                    properties[name],
                    "connections to ZooKeeper use neither encryption nor authentication: remove the setting only if "
                    "everyone who can reach ZooKeeper may change the cluster",
                )

    def _warn_of_values(self) -> None:
        selector = self.replica_selector_class
        if selector not in (None, "", RACK_AWARE_SELECTOR, LEADER_SELECTOR):
            self.warnings.append(
                f"replica.selector.class={selector} has no effect: consumers read from leaders. Headrace has only "
                f"{RACK_AWARE_SELECTOR}"
            )
        protocols = set(self.group_coordinator_rebalance_protocols) & {"streams", "share"}
        if protocols and "group.coordinator.rebalance.protocols" in self._static:
            self.warnings.append(
                f"group.coordinator.rebalance.protocols contains {' and '.join(sorted(protocols))}, which Headrace "
                "does not support"
            )

    def _check_together(self) -> None:
        if self.authorizer_class_name:
            raise ConfigError(
                "authorizer.class.name",
                self.authorizer_class_name,
                "Headrace has no authorization: remove the setting only if every client may do everything",
            )
        if self.log_cleaner_min_compaction_lag_ms > self.log_cleaner_max_compaction_lag_ms:
            raise ConfigError(
                "log.cleaner.min.compaction.lag.ms",
                self.log_cleaner_min_compaction_lag_ms,
                f"must be at most log.cleaner.max.compaction.lag.ms, which is {self.log_cleaner_max_compaction_lag_ms}",
            )
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ConfigError(
                "group.min.session.timeout.ms",
                self.group_min_session_timeout_ms,
                f"must be at most group.max.session.timeout.ms, which is {self.group_max_session_timeout_ms}",
            )
