"""The port for changes to the cluster that any broker may make. Only the controller makes other changes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from headrace.cluster.image import ConfigResource, TopicImage
from headrace.errors import KafkaError

Alteration: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Computes the new settings of a resource from its current ones; raises KafkaError to leave them unchanged."""


class ClusterAdmin(Protocol):
    """Creates topics for clients, and changes settings."""

    async def auto_create(self, names: Sequence[str]) -> Sequence[TopicImage | KafkaError]:
        """Create topics with this broker's defaults. Return the topic or the error for each name. Raises KafkaError."""

    async def create_internal_topic(self, name: str) -> TopicImage:
        """Return the internal topic `name`; create it if it is missing. Raises KafkaError."""

    async def alter_configs(
        self, alterations: Sequence[tuple[ConfigResource, Alteration]], *, validate_only: bool = False
    ) -> Sequence[KafkaError | None]:
        """Change dynamic settings. Return None or the error for each alteration. Raises KafkaError."""
