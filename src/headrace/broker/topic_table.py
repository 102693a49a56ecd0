"""The topics of the cluster as groups of the consumer protocol see them."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from headrace.cluster.image import MetadataImage
from headrace.cluster.topic_names import INTERNAL_TOPICS
from headrace.errors import KafkaError

if TYPE_CHECKING:
    from headrace.coordinator.groups.expressions import TopicExpressions

_SLICE_S: Final = 0.002
"""How long the event loop matches expressions in one turn, and how long it does other things between two."""

log = logging.getLogger(__name__)


class TopicTable:
    """Read off the metadata image; `version` is raised by whoever learns of a change to topics."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image
        self.version = 0
        self._expressions: TopicExpressions | None = None
        self._work: asyncio.Task[None] | None = None

    def matching(self, regex: str) -> tuple[str, ...] | None:
        """The topics whose whole name the expression matches, sorted; None where that takes longer: ask again."""
        if self._expressions is None:
            from headrace.coordinator.groups.expressions import TopicExpressions

            self._expressions = TopicExpressions(time.monotonic, _report)
        found = self._expressions.matching(regex, self.version, self._topic_names)
        if found is None and self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._match(self._expressions))
        return found

    async def _match(self, expressions: "TopicExpressions") -> None:
        try:
            while expressions.work(_SLICE_S):  # noqa: ASYNC110  # others have their turn; nothing is waited for
                await asyncio.sleep(_SLICE_S)
        finally:
            self._work = None

    async def stop(self) -> None:
        """End what is being matched."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])

    def _topic_names(self) -> Collection[str]:
        """What an expression may stand for: as with Kafka, all but internal topics."""
        return [name for name in self._image().topics if name not in INTERNAL_TOPICS]

    def describe(self, topic: str) -> tuple[bytes, int] | None:
        """Id (16 bytes) and number of partitions; None where it does not exist."""
        found = self._image().topics.get(topic)
        return None if found is None else (found.topic_id.bytes, len(found.partitions))

    def name_of(self, topic_id: bytes) -> str | None:
        """None where it does not exist."""
        return self._image().names.get(uuid.UUID(bytes=topic_id))


def _report(error: KafkaError) -> None:
    log.error("%s Its members get no topics by it", error)
