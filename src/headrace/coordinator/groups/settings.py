"""The settings of the group coordinator, with Kafka's names and defaults."""

from dataclasses import dataclass, field
from typing import Final

EVERY_GROUP: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Named like Kafka's settings, with underscores for dots. The `..._max_size` are numbers of members."""

    group_initial_rebalance_delay_ms: int = 3000
    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2**31 - 1
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5000
    group_consumer_assignment_interval_ms: int = 1000
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    group_consumer_migration_policy: str = "bidirectional"
    offset_metadata_max_bytes: int = 4096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offsets_topic_num_partitions: int = 50
    offsets_topic_compression_codec: int = 0
    """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
    by_group: dict[str, "GroupSettings"] = field(default_factory=dict, compare=False, repr=False)
    """Settings of single groups (KIP-848), and under EVERY_GROUP the dynamic settings of all groups."""

    def of(self, group_id: str) -> "GroupSettings":
        """Return the group's effective settings."""
        return self.by_group.get(group_id) or self.by_group.get(EVERY_GROUP, self)
