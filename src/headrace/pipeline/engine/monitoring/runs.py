"""The table `runs`: a row for each batch of each job.

The rows of all jobs are appended together once a minute: a commit for every batch would take as long as a small batch.
If a driver is killed, the rows of its last minute are lost; only the topic `headrace.pipeline.progress` may have them.
"""

import json
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

from headrace.pipeline.engine.progress import Progress
from headrace.pipeline.engine.tables.lake import Lake

TABLE: Final = "runs"
_EVERY_S: Final = 60.0
_MOST_ROWS: Final = 10_000
_COLUMNS: Final = {
    "job": "string",
    "version": "int",
    "query": "string",
    "batch": "bigint",
    "started": "timestamp",
    "input_rows": "bigint",
    "published": "bigint",
    "late_rows": "bigint",
    "quarantined_rows": "bigint",
    "duration_ms": "bigint",
    "rows_per_s": "double",
    "us_per_row": "double",
    "lag": "bigint",
    "watermark": "timestamp",
    "state_rows": "bigint",
    "state_bytes": "bigint",
    "durations_ms": "map<string,bigint>",
    "source_to": "string",
}


class Runs:
    """Rows that this driver has not written yet."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._writer = f"runs-{uuid.uuid4()}"
        self._rows: list[dict[str, Any]] = []
        self._commits = 0
        self._flushed = time.monotonic()

    def add(self, before: Progress, now: Progress, batch: Mapping[str, Any]) -> None:
        """Add the row of a batch, from the job's progress before and after it, and from Spark's report `batch`."""
        self._rows.append(row(before, now, batch))
        # Bound the memory if the lake cannot be written.
        del self._rows[:-_MOST_ROWS]

    def flush_if_due(self) -> None:
        if time.monotonic() - self._flushed > _EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Append the rows to the table. Raises Spark's error if that fails; the rows are kept for the next attempt."""
        self._flushed = time.monotonic()
        if not self._rows:
            return
        fields = ", ".join(f"{name}: {kind}" for name, kind in _COLUMNS.items())
        query = f"SELECT inline(from_json(:rows, 'array<struct<{fields}>>'))"
        rows = self._lake.spark.sql(query, args={"rows": json.dumps(self._rows)})
        self._lake.append(TABLE, rows.coalesce(1), writer=self._writer, batch=self._commits, metadata={})
        self._commits += 1
        self._rows.clear()


def row(before: Progress, now: Progress, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a batch as JSON values."""
    duration_ms = now.durations_ms.get("batch", 0)
    ends = [source.get("endOffset") for source in batch["sources"]]
    return {
        "job": now.job,
        "version": now.version,
        "query": str(batch["id"]),
        "batch": now.batch,
        "started": batch["timestamp"],
        "input_rows": now.input_rows,
        "published": now.published,
        "late_rows": now.late_rows - before.late_rows,
        "quarantined_rows": now.quarantined_rows - before.quarantined_rows,
        "duration_ms": duration_ms,
        "rows_per_s": now.rows_per_s,
        "us_per_row": round(duration_ms * 1000 / now.input_rows, 1) if now.input_rows else None,
        "lag": now.lag,
        "watermark": now.watermark,
        "state_rows": now.state_rows,
        "state_bytes": now.state_bytes,
        "durations_ms": dict(now.durations_ms),
        "source_to": ends[0] if ends and isinstance(ends[0], str) else json.dumps(ends[0] if ends else None),
    }
