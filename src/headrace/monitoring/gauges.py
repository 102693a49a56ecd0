"""Collectors of the broker's Prometheus metrics."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.clock import now_ms
from headrace.coordinator.group_coordinator import GroupCoordinator
from headrace.metrics import Family, gauge
from headrace.replication.replica_manager import ReplicaManager
from headrace.server.loop.loop_watch import LoopWatch
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.files.open_files import OPEN_FILES

if TYPE_CHECKING:
    from headrace.storage.cleaner.log_cleaner import LogCleaner


def log_directories(replicas: ReplicaManager) -> Iterable[Family]:
    """Yield the state and disk space of log directories."""
    log_dirs = replicas.log_dirs
    offline = {str(path): 1 for path in log_dirs.owned.offline}
    yield gauge(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "Log directories that cannot be used.",
        len(log_dirs.owned.offline),
    )
    yield Family(
        "kafka_log_logmanager_logdirectoryoffline",
        "1 if the log directory cannot be used, else 0.",
        [({"logDirectory": item}, offline.get(item, 0)) for item in [*map(str, log_dirs.directories), *offline]],
    )
    spaces = [({"logDirectory": str(directory)}, space) for directory, space in log_dirs.owned.disk_space.items()]
    yield Family(
        "headrace_log_directory_size_bytes",
        "Size in bytes of the log directory's file system.",
        [(labels, space.total) for labels, space in spaces],
    )
    yield Family(
        "headrace_log_directory_free_bytes",
        "Free bytes on the log directory's file system.",
        [(labels, space.free) for labels, space in spaces],
    )
    yield Family(
        "headrace_log_directory_fullness",
        "0: enough free space; 1: below the soft mark; 2: below the hard mark, so records from clients are refused.",
        [(labels, space.room) for labels, space in spaces],
    )


def compaction(cleaner: "LogCleaner | None", dead_threads: int, log_dirs: LogDirs) -> Iterable[Family]:
    """Yield the state of compaction, and the partitions where it fails."""
    failing = {} if cleaner is None else dict(cleaner.failing)
    count: dict[str, int] = {str(directory): 0 for directory in log_dirs.directories}
    size = dict(count)
    for topic_partition in failing:
        failed = log_dirs.logs.get(topic_partition)
        if failed is not None:
            count[str(failed.directory.parent)] += 1
            size[str(failed.directory.parent)] += failed.segments.size
    yield Family(
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        "Partitions whose last compaction failed; retried every minute.",
        [({"logDirectory": directory}, number) for directory, number in count.items()],
    )
    yield Family(
        "kafka_log_logcleanermanager_uncleanable_bytes",
        "Bytes in partitions whose last compaction failed.",
        [({"logDirectory": directory}, number) for directory, number in size.items()],
    )
    yield Family(
        "headrace_log_cleaner_failing",
        "1 for each partition whose last compaction failed.",
        [({"topic": topic, "partition": str(partition)}, 1) for topic, partition in failing],
    )
    yield gauge(
        "kafka_log_logcleanermanager_max_dirty_percent",
        "Largest uncompacted share of a compacted log, in percent.",
        0 if cleaner is None else round(cleaner.max_dirty_ratio * 100),
    )
    yield gauge(
        "kafka_log_logcleanermanager_time_since_last_run_ms",
        "Milliseconds since the last check for logs to compact; 0 before the first.",
        0 if cleaner is None else max(0, now_ms() - cleaner.looked_at_ms),
    )
    yield gauge("kafka_log_logcleaner_deadthreadcount", "Cleaner threads that have died.", dead_threads)


def open_files() -> Iterable[Family]:
    yield gauge("headrace_log_open_segment_files", "Segment files that the broker has open.", len(OPEN_FILES))


def loop(watch: LoopWatch) -> Iterable[Family]:
    """Yield the delay of the event loop, which adds to the latency of every request, and what has blocked the loop."""
    shares = (0.5, 0.99, 1.0)
    yield Family(
        "headrace_loop_delay_seconds",
        "Delay of the event loop in seconds, over the last minute.",
        [({"quantile": f"{share:g}"}, late) for share, late in zip(shares, watch.quantiles(*shares), strict=True)],
    )
    yield Family(
        "headrace_loop_holds",
        "Number of times that requests of an API, or other work, blocked the event loop for 200 ms or more.",
        [({"api": api}, count) for api, count in sorted(watch.holds.items())],
        "counter",
    )


def expiring_offsets(coordinator: GroupCoordinator) -> Iterable[Family]:
    """Yield the number of groups whose committed offsets expire soon, and the time until the first of them expires."""
    expiring = coordinator.expiring_offsets()
    yield gauge("headrace_groups_with_expiring_offsets", "Groups whose committed offsets expire soon.", len(expiring))
    now = now_ms()
    yield Family(
        "headrace_group_offsets_expire_seconds",
        "Seconds until the first committed offset of the group expires, unless the group is used.",
        [({"group": group_id}, max(at - now, 0) / 1000) for group_id, at in sorted(expiring.items())],
    )
