"""Read the jobs' progress from the driver's status files, without Spark."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from headrace.pipeline.errors import PipelineError

_LOST_S: Final = 30.0
"""A driver is lost if its file is older than this. Drivers write every 5 s."""
_TEXTS: Final = ("job", "state", "updated", "watermark", "last_failure", "next_retry")
_COUNTS: Final = ("batch", "lag", "rows_per_s", "state_rows", "late_rows", "quarantined_rows")
_FIELDS: Final = frozenset((*_TEXTS, *_COUNTS))
"""The fields that the command prints."""
_ACTIVE: Final = ("blocked", "running", "waiting")


def directory(checkpoints: str) -> str:
    """Return the URI of the directory with a JSON file for each job."""
    return f"{checkpoints.rstrip('/')}/status"


def read(checkpoints: str, now: datetime, *, prefix: str = "") -> list[dict[str, Any]]:
    """Return the progress of all jobs that have ever run, sorted by name, with its age in seconds (`age_s`).

    The state is `lost` if the driver has ended without reporting it. `prefix` precedes the topic's name. Raises
    PipelineError if the checkpoints are not on this machine, or if a file is damaged or cannot be read.
    """
    place = directory(checkpoints)
    if "://" in place.removeprefix("file://"):
        raise PipelineError(
            f"{place} cannot be read without Spark. Read the progress from its topic instead: "
            f"`headrace consume {prefix}headrace.pipeline.progress --until-end`"
        )
    path = Path(place.removeprefix("file:").replace("//", "/"))
    return [_read(file, now) for file in sorted(path.glob("*.json"))]


def _read(file: Path, now: datetime) -> dict[str, Any]:
    try:
        return _seen_at(json.loads(file.read_text(encoding="utf-8")), now)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise PipelineError(f"cannot read {file}: {error}") from None


def _seen_at(progress: object, now: datetime) -> dict[str, Any]:
    """Return the progress with its age. Raises ValueError or TypeError for any other value."""
    if not isinstance(progress, dict) or not progress.keys() >= _FIELDS:
        raise ValueError("it is not the progress of a job")
    age = max(0.0, (now - datetime.fromisoformat(progress["updated"])).total_seconds())
    state = "lost" if progress["state"] in _ACTIVE and age > _LOST_S else progress["state"]
    return {**progress, "state": state, "age_s": round(age, 1)}
