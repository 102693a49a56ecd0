"""What a broker tells Prometheus about itself: collectors over the state of its rooms."""

import time
from collections.abc import Iterable

from headrace.coordinator.runtime import GroupCoordinator
from headrace.metrics import Family, gauge
from headrace.replication.replica_manager import ReplicaManager


def log_directories(replicas: ReplicaManager) -> Iterable[Family]:
    """Which log directories work, and how much room they have."""
    log_dirs = replicas.log_dirs
    offline = {str(path): 1 for path in log_dirs.offline}
    yield gauge(
        "kafka_log_logmanager_offlinelogdirectorycount", "Log directories that cannot be used.", len(log_dirs.offline)
    )
    yield Family(
        "kafka_log_logmanager_logdirectoryoffline",
        "Whether the log directory cannot be used.",
        [({"logDirectory": each}, offline.get(each, 0)) for each in [*map(str, log_dirs.directories), *offline]],
    )
    spaces = [({"logDirectory": str(each)}, space) for each, space in log_dirs.disk_space.items()]
    yield Family(
        "headrace_log_directory_size_bytes",
        "Bytes of the file system that the log directory is on.",
        [(labels, space.total) for labels, space in spaces],
    )
    yield Family(
        "headrace_log_directory_free_bytes",
        "Bytes that can still be written to the log directory.",
        [(labels, space.free) for labels, space in spaces],
    )
    yield Family(
        "headrace_log_directory_fullness",
        "0 where there is room, 1 under the soft mark, 2 under the hard mark, where clients' records are refused.",
        [(labels, space.room) for labels, space in spaces],
    )


def expiring_offsets(coordinator: GroupCoordinator) -> Iterable[Family]:
    """Groups that are about to lose their committed offsets, and in how many seconds the first one goes."""
    expiring = coordinator.expiring_offsets()
    yield gauge("headrace_groups_with_expiring_offsets", "Groups that lose committed offsets soon.", len(expiring))
    now_ms = time.time_ns() // 1_000_000
    yield Family(
        "headrace_group_offsets_expire_seconds",
        "Seconds until the group loses the first of its committed offsets, unless somebody uses it.",
        [({"group": group_id}, max(at - now_ms, 0) / 1000) for group_id, at in sorted(expiring.items())],
    )


def replica_manager(replicas: ReplicaManager) -> Iterable[Family]:
    """How many partitions there are."""
    count = len(replicas.partitions())
    yield gauge("kafka_server_replicamanager_partitioncount", "Partitions on this broker.", count)
    yield gauge("kafka_server_replicamanager_leadercount", "Partitions that this broker leads.", count)
