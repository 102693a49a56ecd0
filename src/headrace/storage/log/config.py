"""The topic settings that logs use: Kafka's names with underscores, Kafka 4.3's defaults."""

from dataclasses import dataclass, field
from typing import Final

NO_LIMIT: Final = 2**63 - 1
_DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Settings of one log; times in ms, sizes in bytes; -1 or `NO_LIMIT` for no limit, as in Kafka.

    See https://kafka.apache.org/documentation/#topicconfigs
    """

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * _DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    preallocate: bool = False
    flush_messages: int = NO_LIMIT
    flush_ms: int = NO_LIMIT

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = -1
    file_delete_delay_ms: int = 60_000
    delete_retention_ms: int = _DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NO_LIMIT

    max_message_bytes: int = 1024 * 1024 + 12
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = NO_LIMIT
    message_timestamp_after_max_ms: int = 60 * 60 * 1000

    min_insync_replicas: int = 1

    # computed once, because every append reads them
    compacts: bool = field(init=False)
    stores_batches_as_sent: bool = field(init=False)
    """True if valid batches are neither recompressed nor given new timestamps."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "compacts", "compact" in self.cleanup_policy)
        keeps = self.compression_type == "producer" and self.message_timestamp_type != "LogAppendTime"
        object.__setattr__(self, "stores_batches_as_sent", keeps)

    @property
    def deletes(self) -> bool:
        """True if retention by time and size applies."""
        return "delete" in self.cleanup_policy
