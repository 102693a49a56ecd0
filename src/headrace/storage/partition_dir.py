"""Names of partition directories: `topic-partition`, and with an id and a suffix while a partition goes.

Kafka has more suffixes, `-future` for a copy in the making and `-stray` for what the cluster does not know: the dot
before the id and the word behind it keep those from being taken for a partition.
"""

import re
from typing import Final
from uuid import uuid4

from headrace.types import TopicPartition

DELETE_SUFFIX: Final = "-delete"
"""Waits for its removal."""
STRAY_SUFFIX: Final = "-stray"
"""Belongs to no topic that the cluster has; an operator decides what becomes of it."""

KRAFT_METADATA: Final = "__cluster_metadata"
"""The metadata log of a KRaft quorum, in directories that Kafka wrote: no topic's, and left as it is."""

_MAX_NAME: Final = 255
_NAME: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>0|[1-9][0-9]{0,9})", re.ASCII)


def parse_name(name: str) -> TopicPartition | None:
    """The partition whose log is in the directory `name`; None for any other directory.

    The topic may itself contain dashes, digits and dots: the partition is behind the last dash.
    """
    match = _NAME.fullmatch(name)
    return TopicPartition(match["topic"], int(match["partition"])) if match else None


def retired_name(topic_partition: TopicPartition, suffix: str) -> str:
    """A new name for a directory that is no longer served, cut to what a file system takes."""
    tail = f"-{topic_partition.partition}.{uuid4().hex}{suffix}"
    return topic_partition.topic[: _MAX_NAME - len(tail)] + tail
