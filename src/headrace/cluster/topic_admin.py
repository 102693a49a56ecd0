"""Create, grow and delete topics, and change settings.

`topic_changes` decides, without I/O. The controller elects the leaders of new partitions (`controller/machine.py`).
"""

import asyncio
import functools
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from headrace.cluster import znodes
from headrace.cluster.admin import Alteration
from headrace.cluster.controller.office import Office, decided_at_once, read_topic
from headrace.cluster.drafts import Draft
from headrace.cluster.failures import StoreFailures
from headrace.cluster.image import ConfigResource, TopicImage
from headrace.cluster.metadata_cache import MetadataCache
from headrace.cluster.store import Create, MetadataStore, Operation, Set
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.slices import Pace

if TYPE_CHECKING:
    from headrace.cluster.topic_changes import NewPartitions, NewTopic

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _uncancellable(change: Callable[_P, Coroutine[Any, Any, _R]]) -> Callable[_P, Coroutine[Any, Any, _R]]:
    """Finish `change` even if its caller is cancelled: otherwise a durable write might stay invisible."""

    @functools.wraps(change)
    async def shielded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return await asyncio.shield(change(*args, **kwargs))

    return shielded


class TopicAdmin:
    """Changes topics and settings, one request at a time.

    Methods raise KafkaError if the whole request is refused or the store cannot be written.
    """

    def __init__(
        self,
        store: MetadataStore,
        cache: MetadataCache,
        office: Office,
        config: BrokerConfig,
        failures: StoreFailures,
        *,
        check_directories: Callable[[], None] = lambda: None,
        random: Random | None = None,
    ) -> None:
        """`check_directories` raises KafkaError if no log directory works."""
        self._store = store
        self._cache = cache
        self._office = office
        self._config = config
        self._failures = failures
        self._check_directories = check_directories
        self._random = random or Random()
        self._lock = asyncio.Lock()

    @_uncancellable
    async def create_topics(
        self,
        topics: Sequence["NewTopic"],
        *,
        validate_only: bool = False,
        timeout_s: float = 0,  # noqa: ARG002  there is nothing to wait for
    ) -> list[TopicImage | KafkaError]:
        """Create all valid topics in one durable write, or only check them. Return the topic or the error for each."""
        from headrace.cluster import topic_changes  # imported when needed

        async with self._lock:
            draft = Draft(self._cache.image)
            size = len(topics) + sum(max(new.partitions, len(new.assignments)) for new in topics)
            results = await decided_at_once(
                size, lambda: topic_changes.create_topics(draft, topics, self._config, self._random)
            )
            if draft.operations and not validate_only:
                created = [topic for topic in results if isinstance(topic, TopicImage)]
                await self._add_partitions(draft, [(topic, 0) for topic in created], size)
            return results

    async def auto_create(self, names: Sequence[str]) -> list[TopicImage | KafkaError]:
        """Create topics with this broker's defaults. Return the topic or the error for each name."""
        from headrace.cluster.topic_changes import NewTopic

        return await self.create_topics([NewTopic(name) for name in names])

    @_uncancellable
    async def create_partitions(
        self,
        requests: Sequence["NewPartitions"],
        *,
        validate_only: bool = False,
        timeout_s: float = 0,  # noqa: ARG002
    ) -> list[KafkaError | None]:
        """Add partitions for all valid requests in one durable write. Return None or the error for each request."""
        from headrace.cluster import topic_changes

        async with self._lock:
            draft = Draft(self._cache.image)
            most = topic_changes.MAX_PARTITIONS_PER_REQUEST
            size = len(requests) + sum(min(max(new.total, 0), most) for new in requests)
            results = await decided_at_once(size, lambda: topic_changes.grow_topics(draft, requests, self._random))
            if draft.operations and not validate_only:
                grown = [result for result in results if not isinstance(result, KafkaError)]
                await self._add_partitions(draft, grown, size)
            return [result if isinstance(result, KafkaError) else None for result in results]

    @_uncancellable
    async def delete_topics(
        self,
        names: Sequence[str],
        ids: Mapping[str, uuid.UUID] = MappingProxyType({}),
        *,
        timeout_s: float = 0,  # noqa: ARG002
    ) -> list[KafkaError | None]:
        """Delete all existing topics in one durable write. Return None or the error for each name.

        A topic in `ids` is deleted only if it has that id: a new topic may have its name by now.
        """
        from headrace.cluster import topic_changes

        async with self._lock:
            draft = Draft(self._cache.image)
            known = self._cache.image.topics
            size = len(names) + sum(len(topic.partitions) for name in names if (topic := known.get(name)) is not None)
            results = await decided_at_once(size, lambda: topic_changes.delete_topics(draft, names, ids))
            deleted = [topic for topic in results if isinstance(topic, TopicImage)]
            if deleted:
                names_of = [topic.name for topic in deleted]
                await self._office.perform(draft.operations, lambda machine: machine.remove_topics(names_of), size=size)
            return [result if isinstance(result, KafkaError) else None for result in results]

    @_uncancellable
    async def alter_configs(
        self, alterations: Sequence[tuple[ConfigResource, Alteration]], *, validate_only: bool = False
    ) -> list[KafkaError | None]:
        """Change dynamic settings in one durable write. Return None or the error for each alteration."""
        async with self._lock:
            results: list[KafkaError | None] = []
            configs: dict[ConfigResource, Mapping[str, str]] = {}
            pace = Pace()
            for resource, alteration in alterations:
                try:
                    configs[resource] = alteration(self._cache.image.config(resource.kind, resource.name))
                except KafkaError as error:
                    results.append(error.with_traceback(None))
                else:
                    results.append(None)
                await pace.rest()
            if configs and not validate_only:
                operations = []
                with self._failures.answering():
                    for resource, values in configs.items():
                        operations.append(await self._config_operation(resource, values))
                        await pace.rest()
                    await self._store.multi(operations)
                self._failures.note_written()
                await self._cache.apply_configs(configs)
            return results

    async def create_internal_topic(self, name: str) -> TopicImage:
        """Return the internal topic `name`; create it if it is missing."""
        existing = self._cache.image.topics.get(name)
        if existing is not None:
            return existing
        from headrace.cluster import topic_changes

        new = topic_changes.internal_topic(name, self._config, len(self._cache.image.brokers))
        (result,) = await self.create_topics((new,))
        if isinstance(result, TopicImage):
            return result
        if result.code == ErrorCode.topic_already_exists:
            return self._cache.image.topics[name]
        raise result

    async def _add_partitions(self, draft: Draft, added: Sequence[tuple[TopicImage, int]], size: int) -> None:
        self._check_directories()
        topics = {topic.name: read_topic(topic) for topic, _ in added}
        await self._office.perform(
            draft.operations,
            lambda machine: machine.topics_changed((*machine.context.topic_ids, *topics), topics),
            size=size,
            written=lambda: self._cache.note_configs(draft.configs),
        )
        self._check_directories()  # if the last directory failed meanwhile, no log was created

    async def _config_operation(self, resource: ConfigResource, values: Mapping[str, str]) -> Operation:
        path, data = znodes.config_path(resource), znodes.encode_config(values)
        return Create(path, data) if await self._store.exists(path) is None else Set(path, data)
