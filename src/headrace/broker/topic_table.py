"""The cluster's topics, and those that match the regular expressions of subscriptions (KIP-848)."""

import asyncio
import logging
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from headrace.cluster.metadata_cache import MetadataCache
from headrace.cluster.topic_names import INTERNAL_TOPICS
from headrace.errors import KafkaError

if TYPE_CHECKING:
    from headrace.coordinator.groups.expressions import TopicExpressions

_SLICE_S: Final = 0.002
"""Seconds to match expressions before a pause of the same length."""

log = logging.getLogger(__name__)


class TopicTable:
    """The metadata cache, and the topics that match regular expressions."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache
        self.describe = cache.describe
        self.name_of = cache.name_of
        self._expressions: TopicExpressions | None = None
        self._work: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """Increases when a topic or a partition is added or removed."""
        return self._cache.version

    def matching(self, regex: str) -> tuple[str, ...] | None:
        """Return the topics whose whole name matches, sorted; None while matching continues in the background."""
        if self._expressions is None:
            from headrace.coordinator.groups.expressions import TopicExpressions

            self._expressions = TopicExpressions(time.monotonic, _report)
        found = self._expressions.matching(regex, self.version, self._topic_names)
        if found is None and self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._match(self._expressions))
        return found

    async def _match(self, expressions: "TopicExpressions") -> None:
        try:
            while expressions.work(_SLICE_S):  # noqa: ASYNC110  # a pause for other work, not a poll
                await asyncio.sleep(_SLICE_S)
        finally:
            self._work = None

    async def stop(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])

    def _topic_names(self) -> Collection[str]:
        """Return the topics that an expression may match: as in Kafka, all except internal ones."""
        return [name for name in self._cache.image.topics if name not in INTERNAL_TOPICS]


def _report(error: KafkaError) -> None:
    log.error("%s Members that subscribe with it get no topics: correct the expression in the consumers", error)
