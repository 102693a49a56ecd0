"""The ledger: an entry per batch, written before the batch writes anything else.

The entry is in `<checkpoints>/ledger/<job>/<batch>.json`. After a crash, the search for the batch's
records starts at its end offsets of the output topics. Its topic ids show if a source topic was re-created.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, Protocol

from headrace.pipeline.engine.reached import Reached
from headrace.pipeline.errors import PipelineError

Offsets = Mapping[str, Mapping[int, int]]
"""Next offsets by topic and partition."""

_KEPT: Final = 100
"""Entries to keep per job: the number of batches that Spark keeps in a checkpoint."""


class FileAccess(Protocol):
    """The file operations that the ledger needs."""

    def read(self, uri: str) -> str | None: ...

    def write(self, uri: str, text: str) -> None: ...

    def names(self, uri: str) -> list[str]: ...

    def delete(self, uri: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The entry of a batch. `query` is the query's id, from its checkpoint.

    `source_from` and `source_to` are Spark's source offsets before and after the batch. `output_ends` are the end
    offsets of the output topics before its first attempt.
    """

    job: str
    version: int
    query: str
    batch: int
    source_from: object = None
    source_to: object = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    output_ends: Offsets = field(default_factory=dict)
    reached: Reached = field(default_factory=Reached)
    """The event times reached after the batch. The lateness of the next batch's rows is relative to them."""

    def same_batch(self, other: "Entry") -> bool:
        """Return True for the same batch of the same checkpoint. A new checkpoint numbers its batches from 0 again."""
        return (self.query, self.version, self.batch) == (other.query, other.version, other.batch)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str, uri: str) -> "Entry":
        """Parse the entry in the file `uri`. Raises PipelineError if it is damaged."""
        try:
            fields = json.loads(text)
            ends = {topic: {int(p): end for p, end in at.items()} for topic, at in fields.pop("output_ends").items()}
            after = Reached(**fields.pop("reached"))
            return cls(**fields, output_ends=ends, reached=after)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise PipelineError(
                f"{uri} is damaged ({error}) and begins with {text[:200]!r}: restore the checkpoints from a backup"
            ) from None


class Ledger:
    """The entries of one job."""

    def __init__(self, files: FileAccess, checkpoints: str, job: str) -> None:
        self._files = files
        self._directory = f"{checkpoints.rstrip('/')}/ledger/{job}"

    def record(self, entry: Entry) -> Entry:
        """Write the entry unless its batch already has one, and return the stored one.

        A batch keeps its first entry, because a repeated batch must search for its records from the offsets before
        its first attempt. Raises PipelineError if the stored entry is damaged.
        """
        earlier = self.read(entry.batch)
        if earlier is not None and earlier.same_batch(entry):
            return earlier
        if entry.batch == 0:
            # The checkpoint is new, so entries of an earlier version of the job are obsolete.
            for name in self._files.names(self._directory):
                self._files.delete(f"{self._directory}/{name}")
        self._files.write(self._uri(entry.batch), entry.to_json())
        if entry.batch >= _KEPT:
            self._files.delete(self._uri(entry.batch - _KEPT))
        return entry

    def last(self) -> Entry | None:
        """Return the entry of the latest batch; None for a new job. Raises PipelineError if it is damaged."""
        names = self._files.names(self._directory)
        batches = [int(stem) for stem, dot, kind in (name.partition(".") for name in names) if kind == "json"]
        return self.read(max(batches)) if batches else None

    def read(self, batch: int) -> Entry | None:
        """Return the entry of a batch; None if it has none. Raises PipelineError if the entry is damaged."""
        uri = self._uri(batch)
        text = self._files.read(uri)
        return None if text is None else Entry.from_json(text, uri)

    def _uri(self, batch: int) -> str:
        return f"{self._directory}/{batch}.json"
