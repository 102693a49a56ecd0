"""Find the topic offsets that a job has reached after a batch, even if it reads a table.

The query commits them to a consumer group, which shows the job's lag. A commit to a table records the offsets that its
writer has reached. A job that reads the table has reached the offsets in the last commit that it has read completely.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

from headrace.pipeline.engine.exactly_once.ledger import Offsets

_COMMITS: Final = 20
"""Maximum number of commits to search: commits of compactions and other programs have no offsets."""


class Reading(Protocol):
    """The files of a table's log."""

    def read(self, uri: str) -> str | None: ...


def of_topics(source_to: object) -> Offsets:
    """Return the topic offsets in Spark's `source_to`; empty for other sources."""
    if not isinstance(source_to, Mapping):
        return {}
    return {topic: {int(partition): end for partition, end in at.items()} for topic, at in source_to.items()}


def of_table(files: Reading, table: str, source_to: Any) -> Offsets:
    """Return the topic offsets that match Delta's offset after a batch.

    Empty during the initial read of a table, and if recent commits have none. `table` is the URI of the table.
    """
    # An offset within a version means that only the versions before it have been read completely.
    version = source_to["reservoirVersion"] - (0 if source_to["index"] > _ALL_FILES else 1)
    if source_to.get("isStartingVersion"):
        return {}
    for number in range(version, max(-1, version - _COMMITS), -1):
        log = files.read(f"{table}/_delta_log/{number:020}.json")
        if log is None:
            return {}
        if found := _committed(log):
            return found
    return {}


_ALL_FILES: Final = 1 << 62
"""A larger index means that all files of the version were read: Delta's index of their end is near the largest long."""


def _committed(log: str) -> Offsets:
    for line in log.splitlines():
        if '"commitInfo"' in line:
            about = json.loads(json.loads(line)["commitInfo"].get("userMetadata") or "{}")
            return of_topics(about.get("positions"))
    return {}
