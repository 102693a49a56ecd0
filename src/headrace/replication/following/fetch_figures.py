"""A fetcher's figures, for metrics. Pure."""

from typing import NamedTuple

from headrace.types import TopicPartition


class FetcherFigures(NamedTuple):
    """The figures of one fetcher. `requests` and `bytes` count from its start.

    `lags`, in records, omit partitions that no reply has covered yet.
    """

    name: str
    address: tuple[str, int] | None
    """The leader's host and port; None if the leader is not alive."""
    requests: int
    bytes: int
    lags: tuple[tuple[TopicPartition, int], ...]
