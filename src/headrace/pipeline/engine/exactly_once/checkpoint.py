"""Read a query's id and the source offsets of its batches from a Spark checkpoint, and move these offsets."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from headrace.pipeline.engine.exactly_once.positions import of_topics
from headrace.pipeline.errors import PipelineError


class FileAccess(Protocol):
    """The file operations that a checkpoint needs."""

    def read(self, uri: str) -> str | None: ...

    def write(self, uri: str, text: str) -> None: ...

    def names(self, uri: str) -> list[str]: ...


class Checkpoint:
    """The checkpoint of one version of a job, in `<checkpoints>/<job>-<version>`."""

    def __init__(self, files: FileAccess, checkpoints: str, job: str, version: int) -> None:
        self._files = files
        self.uri = f"{checkpoints.rstrip('/')}/{job}-{version}"
        self._last: tuple[int, object] = (-1, None)

    def query_id(self) -> str | None:
        """Return the id of the query, which is unique to the checkpoint; None before the first start of the query."""
        text = self._files.read(f"{self.uri}/metadata")
        return None if text is None else str(json.loads(text)["id"])

    def source_offsets(self, batch: int) -> tuple[object, object]:
        """Return the source's offsets before and after a batch. Spark writes both before it runs the batch.

        The offsets before the first batch are None. For topics, offsets are `{topic: {partition: next offset}}`. Raises
        PipelineError if the checkpoint lacks them.
        """
        number, before = self._last
        if number != batch - 1:
            before = self._read(batch - 1) if batch else None
        after = self._read(batch)
        self._last = (batch, after)
        return before, after

    def last_offsets(self) -> object:
        """Return the source's offsets after the last batch; None if there is none yet, or if it may be incomplete."""
        last = max(self._numbers("offsets"), default=-1)
        return self._read(last) if last in self._numbers("commits") else None

    def next_offsets(self) -> Mapping[str, Mapping[int, int]]:
        """Return where the next batch begins to read topics, by topic and partition. Empty before the first batch.

        If a batch was interrupted, the next batch repeats it.
        """
        committed = max(self._numbers("commits"), default=-1)
        if committed >= 0:
            return of_topics(self._read(committed))
        lines = (self._files.read(f"{self.uri}/sources/0/0") or "").splitlines()
        return of_topics(json.loads(lines[-1])) if lines else {}

    def move(self, next_offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Make the next batch read topics from `next_offsets`, by topic and partition.

        An interrupted batch is repeated without records of these topics. The query must not be running.
        """
        self._rewrite(lambda offsets: {**offsets, **next_offsets})

    def skip_to(self, starts: Mapping[str, Mapping[int, int]]) -> None:
        """Make the next batch skip the offsets before `starts`, by topic and partition.

        An interrupted batch is repeated without these offsets. The query must not be running.
        """

        def skipped(offsets: dict[str, dict[str, int]]) -> dict[str, Mapping[Any, int]]:
            later: dict[str, Mapping[Any, int]] = {**offsets}
            for topic, ends in starts.items():
                known = offsets.get(topic, {})
                later[topic] = {**known, **{str(at): max(known.get(str(at), 0), end) for at, end in ends.items()}}
            return later

        self._rewrite(skipped)

    def _rewrite(self, moved: Callable[[dict[str, dict[str, int]]], Mapping[str, object]]) -> None:
        """Apply `moved` to the source offsets after the last complete batch, and after an interrupted one."""
        committed = max(self._numbers("commits"), default=-1)
        files = [f"offsets/{batch}" for batch in self._numbers("offsets") if batch >= committed]
        if committed < 0:
            files.append("sources/0/0")  # where the first batch starts
        for file in files:
            text = self._files.read(f"{self.uri}/{file}")
            *head, offsets = (text or "").splitlines()
            self._files.write(f"{self.uri}/{file}", "\n".join([*head, json.dumps(moved(json.loads(offsets)))]))
        self._last = (-1, None)

    def _numbers(self, directory: str) -> list[int]:
        return [int(name) for name in self._files.names(f"{self.uri}/{directory}") if name.isdecimal()]

    def _read(self, batch: int) -> object:
        uri = f"{self.uri}/offsets/{batch}"
        # The format's version, metadata, then a line for each source.
        lines = (self._files.read(uri) or "").splitlines()
        if len(lines) < 3:
            raise PipelineError(f"{uri} is missing or damaged: restore the checkpoint from a backup")
        return None if lines[2] == "-" else json.loads(lines[2])
